-- Cache events and the blocks they moved, over time, by kind.
SELECT
    $start_ns + bin * ($end_ns - $start_ns) // $bins AS time_ns,
    {part.event_kind} AS kind,
    count(*) AS events,
    sum(num_blocks) AS blocks
FROM (
    SELECT *, (time_ns - $start_ns) * $bins // ($end_ns - $start_ns) AS bin
    FROM {run.kv_events}
    WHERE time_ns >= $start_ns AND time_ns < $end_ns
)
GROUP BY bin, {part.event_kind}
ORDER BY bin, {part.event_kind}
