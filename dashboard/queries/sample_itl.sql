-- Gaps between consecutive visible tokens, pooled over the successful requests of a population, sorted.
-- The tokens of one chunk share its time: a burst of k tokens adds k-1 gaps of zero.
WITH visible AS (
    SELECT
        r.lane,
        c.tokens,
        c.time_ns - lag(c.time_ns) OVER (PARTITION BY c.request_id ORDER BY c.time_ns, c.ordinal) AS gap_ns
    FROM {run.chunks} c
    JOIN {run.population} r ON r.request_id = c.request_id
    WHERE r.status = 'ok' AND c.visible AND c.tokens > 0
)
SELECT {metric.column} AS value, lane FROM visible WHERE gap_ns IS NOT NULL
UNION ALL
SELECT 0 AS value, lane FROM visible, unnest(range(1, tokens)) AS burst(token)
ORDER BY value, lane
