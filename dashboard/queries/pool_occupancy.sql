-- KV pool over time: blocks that requests refer to, distinct contents held (referred to or not), and the pool's size.
SELECT
    $start_ns + bin * ($end_ns - $start_ns) // $bins AS time_ns,
    avg(kv_blocks_used) AS used_blocks,
    max(kv_blocks_used) AS max_used_blocks,
    avg(kv_blocks_cached) AS cached_blocks,
    avg(kv_blocks_total - kv_blocks_used) AS free_blocks,
    max(kv_blocks_total) AS total_blocks
FROM (
    SELECT *, (start_ns - $start_ns) * $bins // ($end_ns - $start_ns) AS bin
    FROM {run.passes}
    WHERE start_ns >= $start_ns AND start_ns < $end_ns AND kv_blocks_used IS NOT NULL
)
GROUP BY bin
ORDER BY bin
