-- Gaps between consecutive visible tokens, pooled over the successful requests of a population, sorted.
-- The tokens of one chunk share its time: a burst of k tokens adds k-1 gaps of zero.
-- Requests are numbered: chunks are told apart by a number faster than by the text of an id.
WITH members AS (
    SELECT request_id, lane, row_number() OVER () AS member
    FROM {run.population}
    WHERE status = 'ok'
),
visible AS MATERIALIZED (
    SELECT
        m.lane,
        c.tokens,
        c.time_ns - lag(c.time_ns) OVER (PARTITION BY m.member ORDER BY c.time_ns) AS gap_ns
    FROM {run.chunks} c
    JOIN members m ON m.request_id = c.request_id
    WHERE c.visible AND c.tokens > 0
)
SELECT {metric.column} AS value, lane FROM visible WHERE gap_ns IS NOT NULL
UNION ALL
SELECT 0 AS value, lane FROM (SELECT lane, unnest(range(1, tokens)) FROM visible WHERE tokens > 1)
ORDER BY value, lane
