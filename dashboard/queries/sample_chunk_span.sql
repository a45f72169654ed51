-- Time per output token between the first and the last chunk, visible or not, of the successful requests, sorted.
WITH spans AS (
    SELECT
        any_value(r.lane) AS lane,
        CASE
            WHEN any_value(r.output_tokens) >= 2
            THEN (max(coalesce(c.time_ns, c.after_ns)) - min(coalesce(c.time_ns, c.after_ns))) / (any_value(r.output_tokens) - 1)
        END AS tpot_chunk_ns
    FROM {run.population} r
    LEFT JOIN {run.chunks} c ON c.request_id = r.request_id
    WHERE r.status = 'ok'
    GROUP BY r.request_id
)
SELECT {metric.column} AS value, lane
FROM spans
ORDER BY value NULLS LAST, lane
