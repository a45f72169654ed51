-- Requests that took part in passes answered from outside the measured domain, those with the most such time first.
WITH outside AS (
    SELECT pass_index, duration_ns, resolution, unnest(members) AS member
    FROM {run.passes_in}
    WHERE resolution NOT IN ('exact', 'interpolated')
),
touched AS (
    SELECT member.request_id AS request_id, count(*) AS passes, sum(duration_ns) AS time_ns, string_agg(DISTINCT resolution, ', ' ORDER BY resolution) AS resolutions
    FROM outside
    GROUP BY member.request_id
)
SELECT r.turn, r.phase, r.status, t.passes, t.time_ns, t.resolutions, r.e2e_ns, t.request_id, r.conversation_id, r.turn_index,
    count(*) OVER () AS requests_touched
FROM touched t
LEFT JOIN {run.requests} r ON r.request_id = t.request_id
ORDER BY t.time_ns DESC, t.request_id
LIMIT $top
