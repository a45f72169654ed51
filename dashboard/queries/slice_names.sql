-- Figures that the tool gives by time slice.
SELECT 'slice: ' || name AS series, count(DISTINCT slice_start_ns) AS samples, any_value(unit) AS unit
FROM {run.reported}
WHERE scope = 'slice' AND slice_start_ns IS NOT NULL AND statistic IN ('mean', 'avg')
GROUP BY name
ORDER BY series
