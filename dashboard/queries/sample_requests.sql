-- One metric of the successful requests of a run, sorted, with the number of each; undefined values come last as NULL.
WITH numbered AS (
    {part.numbered}
)
SELECT r.{metric.column} AS value, n.lane, n.request
FROM {run.requests} r
JOIN numbered n ON n.request_id = r.request_id
WHERE n.status = 'ok'
ORDER BY value NULLS LAST, n.lane, n.request
