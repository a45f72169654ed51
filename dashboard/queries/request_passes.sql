-- Passes of a request's rank that started while it was in the system, up to its last: what it got in each (NULL: it was not in it),
-- and what the whole batch was. Of a rank that it came to later, from its first pass there on.
SELECT * EXCLUDE (members, mine), members IS NOT NULL AS composed, mine.scheduled_tokens AS own_tokens, mine.computed_before
FROM (
    SELECT
        pass_index, worker_id, dp_rank, start_ns, end_ns, duration_ns, num_prefill_requests, sum_prefill_tokens, num_decode_requests,
        sum_decode_kv_tokens, num_running, num_waiting, num_preempted, members,
        list_filter(members, lambda one: one.request_id = $request_id)[1] AS mine
    FROM {run.passes}
    WHERE start_ns >= $start_ns AND start_ns <= $end_ns AND class <> 'idle'
)
WHERE mine IS NOT NULL OR end_ns > $dispatched_ns
WINDOW rank AS (PARTITION BY worker_id, dp_rank), every AS ()
QUALIFY NOT bool_or(mine IS NOT NULL) OVER every
    OR (
        start_ns <= max(start_ns) FILTER (mine IS NOT NULL) OVER rank
        AND (
            min(start_ns) FILTER (mine IS NOT NULL) OVER rank = min(start_ns) FILTER (mine IS NOT NULL) OVER every
            OR start_ns >= min(start_ns) FILTER (mine IS NOT NULL) OVER rank
        )
    )
ORDER BY start_ns, pass_index
