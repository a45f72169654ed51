-- Passes over time in even bins: time by class, batch composition, queue and pool. A pass belongs to the bin it starts in.
-- Of one worker and rank, where it is named; else means are over the passes of all.
SELECT
    $start_ns + bin * ($end_ns - $start_ns) // $bins AS time_ns,
    count(*) FILTER (class <> 'idle') AS passes,
    coalesce(sum(duration_ns) FILTER (class = 'prefill_only'), 0) AS prefill_only_ns,
    coalesce(sum(duration_ns) FILTER (class = 'decode_only'), 0) AS decode_only_ns,
    coalesce(sum(duration_ns) FILTER (class = 'mixed'), 0) AS mixed_ns,
    avg(num_prefill_requests) FILTER (class <> 'idle') AS prefill_requests,
    avg(sum_prefill_tokens) FILTER (class <> 'idle') AS new_tokens,
    avg(num_decode_requests) FILTER (class <> 'idle') AS decode_requests,
    avg(sum_decode_kv_tokens) FILTER (class <> 'idle') AS decode_kv_tokens,
    avg(num_running) AS running,
    avg(num_waiting) AS waiting,
    max(num_waiting) AS max_waiting,
    max(duration_ns) AS longest_ns
FROM (
    SELECT *, (start_ns - $start_ns) * $bins // ($end_ns - $start_ns) AS bin
    FROM {run.passes}
    WHERE start_ns >= $start_ns AND start_ns < $end_ns
        AND ($rank IS NULL OR $rank = concat_ws('/', worker_id, dp_rank))
)
GROUP BY bin
ORDER BY bin
