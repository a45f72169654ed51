-- Each copy of a block that the pool held: who stored it, how often it was reused, who used it last, and what became of it. A copy of
-- number 0 was there before the first event. A request uses a block until it is released; one that went on longer than the
-- block stayed had given it up at a preemption.
WITH moves AS (
    SELECT m.*, m.stores_here + (m.kind = 'store')::BIGINT AS copy, r.released_ns
    FROM {block_moves} m
    LEFT JOIN {requests} r ON r.request_id = m.request_id
    WHERE m.hash IS NOT NULL
),
copies AS (
    SELECT
        hash, worker_id, dp_rank, copy,
        min(move) AS move,
        any_value(time_ns) FILTER (kind = 'store') AS stored_ns,
        any_value(request_id) FILTER (kind = 'store') AS stored_by,
        count(*) FILTER (kind IN ('hit', 'readmit')) AS hits,
        max(time_ns) FILTER (kind <> 'evict') AS last_touched_ns,
        arg_max_null(request_id, move) FILTER (kind <> 'evict') AS last_used_by,
        list(released_ns) FILTER (kind <> 'evict' AND released_ns IS NOT NULL) AS released,
        any_value(time_ns) FILTER (kind = 'evict') AS evicted_ns,
        any_value(move) FILTER (kind = 'evict') AS evicted_move,
        any_value(request_id) FILTER (kind = 'evict') AS evicted_by,
        any_value(rule) FILTER (kind = 'evict') AS evicted_rule,
        any_value(age_ns) FILTER (kind = 'evict') AS age_ns
    FROM moves
    GROUP BY hash, worker_id, dp_rank, copy
),
used AS (
    SELECT
        * EXCLUDE (released, last_touched_ns),
        greatest(last_touched_ns, list_max(list_filter(released, lambda moment: moment <= coalesce(evicted_ns, moment)))) AS last_used_ns
    FROM copies
)
SELECT
    u.* REPLACE (coalesce(u.age_ns, u.evicted_ns - u.last_used_ns) AS age_ns),
    (
        SELECT min(e.time_ns)
        FROM {block_moves} e
        WHERE e.kind = 'clear' AND e.move > u.move AND u.evicted_ns IS NULL
            AND e.worker_id IS NOT DISTINCT FROM u.worker_id AND e.dp_rank IS NOT DISTINCT FROM u.dp_rank
    ) AS cleared_ns
FROM used u
