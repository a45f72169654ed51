-- One metric of the successful requests of a population, sorted; undefined values come last as NULL.
SELECT {metric.column} AS value, lane
FROM {run.population}
WHERE status = 'ok'
ORDER BY value NULLS LAST, lane
