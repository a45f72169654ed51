-- Steps that several ranks take together, in even bins of time: how long they last, and how far the ranks lie apart.
WITH steps AS (
    SELECT
        step,
        min(start_ns) AS start_ns,
        max(duration_ns) AS longest_ns,
        max(duration_ns) - min(duration_ns) AS spread_ns,
        max(duration_ns) - avg(duration_ns) AS above_mean_ns,
        arg_max(coalesce(worker_id || ' ', '') || coalesce(dp_rank::VARCHAR, ''), duration_ns) AS slowest
    FROM {run.passes_in}
    WHERE step IS NOT NULL AND duration_ns IS NOT NULL
    GROUP BY step
    HAVING count(*) > 1
)
SELECT
    (start_ns - $start_ns) * $bins // ($end_ns - $start_ns) AS bin,
    min(start_ns) AS time_ns,
    count(*) AS steps,
    avg(longest_ns) AS longest_ns,
    avg(spread_ns) AS spread_ns,
    max(spread_ns) AS widest_ns,
    avg(above_mean_ns) AS above_mean_ns,
    mode(slowest) AS mostly_slowest
FROM steps
WHERE start_ns >= $start_ns AND start_ns < $end_ns
GROUP BY bin
ORDER BY bin
