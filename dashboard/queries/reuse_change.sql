-- Reused prompt tokens of source-turns that succeeded on both sides, with the preemptions and latency beside them; largest change first.
SELECT
    m.source_trace_id, m.conversation_id, m.turn_index, m.turn,
    m.input_tokens AS measured_input_tokens, r.input_tokens AS replay_input_tokens,
    m.cached_tokens AS measured_cached_tokens, r.cached_tokens AS replay_cached_tokens,
    r.cached_tokens - m.cached_tokens AS change_tokens,
    m.preemptions AS measured_preemptions, r.preemptions AS replay_preemptions,
    m.ttft_ns AS measured_ttft_ns, r.ttft_ns AS replay_ttft_ns,
    m.request_id AS measured_request_id, r.request_id AS replay_request_id
{part.shared_turns}
ORDER BY abs(r.cached_tokens - m.cached_tokens) DESC, m.source_trace_id, m.conversation_id, m.turn_index
