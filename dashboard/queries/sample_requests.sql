-- One metric of the successful requests of a run, in order of dispatch, with the number of each; undefined values are NULL.
SELECT {metric.column} AS value, lane, request_number AS request
FROM {run.requests}
WHERE status = 'ok'
