-- The mean of one figure by time slice, as the tool gives it, at most $bins values.
WITH mine AS (
    SELECT slice_start_ns AS time_ns, value
    FROM {run.reported}
    WHERE scope = 'slice' AND 'slice: ' || name = $series AND statistic IN ('mean', 'avg') AND slice_start_ns IS NOT NULL
),
bounds AS (
    SELECT min(time_ns) AS first_ns, greatest(max(time_ns) - min(time_ns), 1) AS length_ns FROM mine
)
SELECT min(mine.time_ns) AS time_ns, avg(mine.value) AS value, count(*) AS samples
FROM mine
CROSS JOIN bounds
GROUP BY ((mine.time_ns - bounds.first_ns) * $bins) // (bounds.length_ns + 1)
ORDER BY time_ns
