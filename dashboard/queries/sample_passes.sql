-- Durations of the passes of a population that did work, of one class or of all, sorted.
SELECT {metric.column} AS value, NULL::BIGINT AS lane
FROM {run.passes_in}
WHERE class <> 'idle' AND ($class IS NULL OR class = $class)
ORDER BY value NULLS LAST
