-- Blocks computed and reused over time: all, those computed again after their eviction, and preemptions.
WITH placed AS (
    SELECT (time_ns - $start_ns) * $bins // ($end_ns - $start_ns) AS bin, kind, restored, {part.block_use} AS use
    FROM {run.block_moves}
    WHERE kind IN ('store', 'hit', 'readmit') AND time_ns >= $start_ns AND time_ns < $end_ns
)
SELECT
    $start_ns + bin * ($end_ns - $start_ns) // $bins AS time_ns,
    count(*) FILTER (kind = 'store' AND NOT restored) AS computed_blocks,
    count(*) FILTER (use IN ('computed_lost', 'computed_preempted')) AS lost_blocks,
    count(*) FILTER (kind <> 'store' OR restored) AS reused_blocks,
    count(*) FILTER (use = 'reuse_first') AS reused_once_blocks
FROM placed
GROUP BY bin
ORDER BY bin
