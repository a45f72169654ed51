-- Reuse of the source-turns that succeeded on both sides: how many differ, and by how much in total.
SELECT
    count(*) AS turns,
    count(*) FILTER (r.cached_tokens = m.cached_tokens) AS equal_turns,
    count(*) FILTER (r.cached_tokens > m.cached_tokens) AS more_reuse_turns,
    count(*) FILTER (r.cached_tokens < m.cached_tokens) AS less_reuse_turns,
    sum(greatest(r.cached_tokens - m.cached_tokens, 0)) AS reuse_without_recompute_tokens,
    sum(greatest(m.cached_tokens - r.cached_tokens, 0)) AS recompute_without_reuse_tokens
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
