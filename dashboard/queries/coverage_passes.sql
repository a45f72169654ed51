-- Passes of a replay by their worst resolution.
SELECT resolution, count(*) AS passes, sum(duration_ns) AS time_ns
FROM {run.passes_in}
WHERE class <> 'idle'
GROUP BY resolution
ORDER BY resolution
