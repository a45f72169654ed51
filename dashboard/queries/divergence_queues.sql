-- Both waiting queues of one divergence, request by request.
WITH divergence AS (
    SELECT * FROM {run.divergences} WHERE "check" = $check AND pass_index = $pass
),
measured AS (
    SELECT unnest(measured_waiting) AS request_id, generate_subscripts(measured_waiting, 1) AS place FROM divergence
),
replay AS (
    SELECT unnest(replay_waiting) AS request_id, generate_subscripts(replay_waiting, 1) AS place FROM divergence
)
SELECT request_id, m.place AS measured_place, r.place AS replay_place
FROM measured m FULL JOIN replay r USING (request_id)
ORDER BY coalesce(m.place, r.place), m.place IS NULL, request_id
