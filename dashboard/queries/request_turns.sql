-- Source-turns of the population on either side, with one number of both. Those that succeeded on both come first, the largest
-- difference in front.
WITH m AS (SELECT *, {metric.column} AS value FROM {measured.requests}),
r AS (SELECT *, {metric.column} AS value FROM {replay.requests})
SELECT
    coalesce(m.turn, r.turn) AS turn,
    m.status AS measured_status,
    r.status AS replay_status,
    m.value AS measured,
    r.value AS replay,
    r.value - m.value AS difference
FROM m
FULL JOIN r
    ON m.turn = r.turn
    AND m.source_trace_id IS NOT DISTINCT FROM r.source_trace_id
    AND m.source_kind IS NOT DISTINCT FROM r.source_kind
    AND m.source_outer_index IS NOT DISTINCT FROM r.source_outer_index
    AND m.source_inner_index IS NOT DISTINCT FROM r.source_inner_index
WHERE m.request_id IN (SELECT request_id FROM {measured.population})
    OR NOT $matched AND list_contains($phases, r.phase)
        AND ($role = 'any' OR r.agent_depth IS NOT NULL AND (r.agent_depth = 0) = ($role = 'root'))
ORDER BY coalesce(m.status = 'ok' AND r.status = 'ok', false) DESC, abs(r.value - m.value) DESC NULLS LAST, coalesce(m.value, r.value) DESC NULLS LAST, turn
