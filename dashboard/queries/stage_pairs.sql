-- The source-turns that the phases of a population share: the numbers of their requests in the two runs.
SELECT m.member AS measured, r.member AS replay
FROM {measured.pairs} p
JOIN {measured.stages} m ON m.request_id = p.request_id
JOIN {replay.stages} r ON r.request_id = p.other_id
ORDER BY measured
