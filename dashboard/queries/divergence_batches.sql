-- Both batches of one divergence, member by member.
WITH divergence AS (
    SELECT * FROM {run.divergences} WHERE "check" = $check AND pass_index = $pass
),
measured AS (
    SELECT unnest(measured_members) AS member, generate_subscripts(measured_members, 1) AS place FROM divergence
),
replay AS (
    SELECT unnest(replay_members) AS member, generate_subscripts(replay_members, 1) AS place FROM divergence
)
SELECT coalesce(m.member.request_id, r.member.request_id) AS request_id,
    m.place AS measured_place, m.member.computed_before AS measured_before, m.member.scheduled_tokens AS measured_tokens,
    r.place AS replay_place, r.member.computed_before AS replay_before, r.member.scheduled_tokens AS replay_tokens,
    CASE WHEN m.place IS NULL THEN 'only replayed' WHEN r.place IS NULL THEN 'only measured'
        WHEN m.member.computed_before <> r.member.computed_before OR m.member.scheduled_tokens <> r.member.scheduled_tokens THEN 'other tokens'
        WHEN m.place <> r.place THEN 'other place' ELSE '' END AS difference
FROM measured m FULL JOIN replay r ON m.member.request_id = r.member.request_id
ORDER BY coalesce(m.place, r.place), m.place IS NULL, request_id
