-- Source-turns that succeeded on both sides with their reuse recorded: m measured, r replayed.
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
