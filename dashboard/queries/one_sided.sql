-- Source-turns of a population that succeeded on one side only, with what became of them on the other.
-- A key that occurs several times on a side counts as finished there when any of its requests succeeded.
WITH measured_turns AS (
    SELECT
        source_trace_id, source_kind, source_outer_index, source_inner_index, conversation_id, turn_index,
        bool_or(status = 'ok') AS finished, min(status) AS status, min(phase) AS phase, min(dispatched_ns) AS dispatched_ns,
        any_value(request_id) AS request_id, any_value(input_tokens) AS input_tokens, any_value(output_tokens) AS output_tokens
    FROM {measured.requests}
    GROUP BY ALL
),
replay_turns AS (
    SELECT
        source_trace_id, source_kind, source_outer_index, source_inner_index, conversation_id, turn_index,
        bool_or(status = 'ok') AS finished, min(status) AS status, min(phase) AS phase, min(dispatched_ns) AS dispatched_ns,
        any_value(request_id) AS request_id, any_value(input_tokens) AS input_tokens, any_value(output_tokens) AS output_tokens
    FROM {replay.requests}
    GROUP BY ALL
)
SELECT
    CASE WHEN coalesce(m.finished, false) THEN 'measured' ELSE 'replay' END AS finished_on,
    coalesce(m.source_trace_id, r.source_trace_id) AS source_trace_id,
    coalesce(m.conversation_id, r.conversation_id) AS conversation_id,
    coalesce(m.turn_index, r.turn_index) AS turn_index,
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
WHERE coalesce(m.finished, false) <> coalesce(r.finished, false)
    AND list_contains($phases, CASE WHEN coalesce(m.finished, false) THEN m.phase ELSE r.phase END)
ORDER BY finished_on, coalesce(m.dispatched_ns, r.dispatched_ns), conversation_id, turn_index
