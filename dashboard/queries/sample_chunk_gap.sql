-- Gaps between consecutive chunks, visible or not, pooled over the successful requests of a population, sorted.
WITH gaps AS (
    SELECT
        r.lane,
        c.time_ns - lag(c.time_ns) OVER (PARTITION BY c.request_id ORDER BY c.time_ns, c.ordinal) AS gap_ns
    FROM {run.chunks} c
    JOIN {run.population} r ON r.request_id = c.request_id
    WHERE r.status = 'ok'
)
SELECT {metric.column} AS value, lane
FROM gaps
WHERE gap_ns IS NOT NULL
ORDER BY value, lane
