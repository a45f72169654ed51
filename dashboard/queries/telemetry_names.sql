-- What was sampled over the run: figures of the server and the GPUs with how often, and the tool's time slices.
SELECT kind || ': ' || name AS series, count(*) AS samples, any_value(unit) AS unit
FROM {run.telemetry}
GROUP BY ALL
ORDER BY series
