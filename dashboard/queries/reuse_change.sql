-- Reused prompt tokens of source-turns that succeeded on both sides, with the preemptions and latency beside them; largest change first.
SELECT
    m.source_trace_id, m.conversation_id, m.turn_index,
    m.input_tokens AS measured_input_tokens, r.input_tokens AS replay_input_tokens,
    m.cached_tokens AS measured_cached_tokens, r.cached_tokens AS replay_cached_tokens,
    r.cached_tokens - m.cached_tokens AS change_tokens,
    m.preemptions AS measured_preemptions, r.preemptions AS replay_preemptions,
    m.ttft_ns AS measured_ttft_ns, r.ttft_ns AS replay_ttft_ns,
    m.request_id AS measured_request_id, r.request_id AS replay_request_id
FROM {measured.population} m
JOIN {replay.requests} r
    ON m.conversation_id IS NOT DISTINCT FROM r.conversation_id
    AND m.turn_index IS NOT DISTINCT FROM r.turn_index
    AND m.source_trace_id IS NOT DISTINCT FROM r.source_trace_id
    AND m.source_kind IS NOT DISTINCT FROM r.source_kind
    AND m.source_outer_index IS NOT DISTINCT FROM r.source_outer_index
    AND m.source_inner_index IS NOT DISTINCT FROM r.source_inner_index
    AND r.status = 'ok' AND list_contains($phases, r.phase)
WHERE m.status = 'ok' AND m.cached_tokens IS NOT NULL AND r.cached_tokens IS NOT NULL
ORDER BY abs(r.cached_tokens - m.cached_tokens) DESC, m.source_trace_id, m.conversation_id, m.turn_index
