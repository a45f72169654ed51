-- How many requests took part in passes of each resolution outside the measured domain, and in any of them (NULL), with the passes and
-- their time; shares are of all requests that took part in a pass.
WITH parts AS (
    SELECT pass_index, duration_ns, resolution, unnest(members) AS member
    FROM {run.passes_in}
    WHERE resolution IS NOT NULL
),
outside AS (
    SELECT resolution, count(DISTINCT member.request_id) AS requests, grouping(resolution) AS total
    FROM parts
    WHERE resolution NOT IN ('exact', 'interpolated')
    GROUP BY GROUPING SETS ((resolution), ())
),
weights AS (
    SELECT resolution, count(*) AS passes, sum(duration_ns) AS time_ns, grouping(resolution) AS total
    FROM {run.passes_in}
    WHERE resolution NOT IN ('exact', 'interpolated') AND class <> 'idle'
    GROUP BY GROUPING SETS ((resolution), ())
),
all_requests AS (SELECT count(DISTINCT member.request_id) AS requests FROM parts)
SELECT
    w.resolution,
    CASE WHEN a.requests > 0 THEN o.requests END AS requests, -- none where nobody recorded who was in a pass
    o.requests / nullif(a.requests, 0) AS request_share,
    w.passes,
    w.time_ns,
    a.requests AS of_requests
FROM weights w
LEFT JOIN outside o ON o.total = w.total AND o.resolution IS NOT DISTINCT FROM w.resolution
CROSS JOIN all_requests a
WHERE w.passes > 0
ORDER BY w.total DESC, w.time_ns DESC, w.resolution
