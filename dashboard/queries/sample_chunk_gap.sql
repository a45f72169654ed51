-- Gaps between consecutive chunks, visible or not, pooled over the successful requests of a population, sorted.
-- Requests are numbered: chunks are told apart by a number faster than by the text of an id.
WITH members AS (
    SELECT request_id, lane, row_number() OVER () AS member
    FROM {run.population}
    WHERE status = 'ok'
),
gaps AS (
    SELECT
        m.lane,
        coalesce(c.time_ns, c.after_ns)
            - lag(coalesce(c.time_ns, c.after_ns)) OVER (PARTITION BY m.member ORDER BY coalesce(c.time_ns, c.after_ns)) AS gap_ns
    FROM {run.chunks} c
    JOIN members m ON m.request_id = c.request_id
)
SELECT {metric.column} AS value, lane
FROM gaps
WHERE gap_ns IS NOT NULL
ORDER BY value, lane
