-- Gaps between consecutive visible tokens of the successful requests of a run, sorted, with the lane and the number of the request.
-- The tokens of one chunk share its time: a burst of k tokens adds k-1 gaps of zero. A request with chunks whose tokens nobody
-- counted has no gaps between tokens.
WITH visible AS MATERIALIZED (
    SELECT
        n.lane,
        n.request_number AS request,
        c.tokens,
        coalesce(c.time_ns, c.after_ns)
            - lag(coalesce(c.time_ns, c.after_ns)) OVER (PARTITION BY n.request_number ORDER BY coalesce(c.time_ns, c.after_ns)) AS gap_ns
    FROM {chunks} c
    JOIN {requests} n ON n.request_id = c.request_id
    WHERE n.status = 'ok' AND c.visible AND c.tokens > 0
        AND c.request_id NOT IN (SELECT request_id FROM {chunks} WHERE tokens IS NULL AND visible IS NOT false)
)
SELECT gap_ns, lane, request FROM visible WHERE gap_ns IS NOT NULL
UNION ALL
SELECT 0 AS gap_ns, lane, request FROM (SELECT lane, request, unnest(range(1, tokens)) FROM visible WHERE tokens > 1)
ORDER BY gap_ns, lane, request
