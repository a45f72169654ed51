-- Source-turns that succeeded in the phases of a population on one side only, with what became of them on the other.
-- A key that occurs several times on a side is told by its success in these phases, else by a request of them; requests
-- counts its successes there.
WITH measured_turns AS (
    SELECT *, count(*) FILTER (status = 'ok' AND list_contains($phases, phase)) OVER turn AS requests
    FROM {measured.requests}
    WINDOW turn AS (PARTITION BY source_trace_id, source_kind, source_outer_index, source_inner_index, conversation_id, turn_index)
    QUALIFY row_number() OVER (turn ORDER BY list_contains($phases, phase) DESC, status = 'ok' DESC, dispatched_ns, request_id) = 1
),
replay_turns AS (
    SELECT *, count(*) FILTER (status = 'ok' AND list_contains($phases, phase)) OVER turn AS requests
    FROM {replay.requests}
    WINDOW turn AS (PARTITION BY source_trace_id, source_kind, source_outer_index, source_inner_index, conversation_id, turn_index)
    QUALIFY row_number() OVER (turn ORDER BY list_contains($phases, phase) DESC, status = 'ok' DESC, dispatched_ns, request_id) = 1
)
SELECT
    CASE WHEN coalesce(m.requests, 0) > 0 THEN 'measured' ELSE 'replay' END AS finished_on,
    coalesce(m.source_trace_id, r.source_trace_id) AS source_trace_id,
    coalesce(m.conversation_id, r.conversation_id) AS conversation_id,
    coalesce(m.turn_index, r.turn_index) AS turn_index,
    greatest(m.requests, r.requests) AS requests,
    coalesce(m.status, 'never sent') AS measured_status,
    coalesce(r.status, 'never sent') AS replay_status,
    m.phase AS measured_phase,
    r.phase AS replay_phase,
    m.dispatched_ns AS measured_dispatched_ns,
    r.dispatched_ns AS replay_dispatched_ns,
    coalesce(m.input_tokens, r.input_tokens) AS input_tokens,
    coalesce(m.output_tokens, r.output_tokens) AS output_tokens,
    m.request_id AS measured_request_id,
    r.request_id AS replay_request_id
FROM measured_turns m
FULL JOIN replay_turns r
    ON m.conversation_id IS NOT DISTINCT FROM r.conversation_id
    AND m.turn_index IS NOT DISTINCT FROM r.turn_index
    AND m.source_trace_id IS NOT DISTINCT FROM r.source_trace_id
    AND m.source_kind IS NOT DISTINCT FROM r.source_kind
    AND m.source_outer_index IS NOT DISTINCT FROM r.source_outer_index
    AND m.source_inner_index IS NOT DISTINCT FROM r.source_inner_index
WHERE (coalesce(m.requests, 0) > 0) <> (coalesce(r.requests, 0) > 0)
ORDER BY finished_on, coalesce(m.dispatched_ns, r.dispatched_ns), conversation_id, turn_index
