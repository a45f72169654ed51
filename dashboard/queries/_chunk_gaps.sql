-- Gaps between consecutive chunks, visible or not, of the successful requests of a run, sorted, with the lane and the number of the
-- request: chunks are told apart by a number faster than by the text of an id.
SELECT gap_ns, lane, request
FROM (
    SELECT
        n.lane,
        n.request_number AS request,
        coalesce(c.time_ns, c.after_ns)
            - lag(coalesce(c.time_ns, c.after_ns)) OVER (PARTITION BY n.request_number ORDER BY coalesce(c.time_ns, c.after_ns)) AS gap_ns
    FROM {chunks} c
    JOIN {requests} n ON n.request_id = c.request_id
    WHERE n.status = 'ok'
)
WHERE gap_ns IS NOT NULL
ORDER BY gap_ns, lane, request
