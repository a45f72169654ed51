-- Reuse of the source-turns that succeeded on both sides: how many differ, and by how much in total.
SELECT
    count(*) AS turns,
    count(*) FILTER (r.cached_tokens = m.cached_tokens) AS equal_turns,
    count(*) FILTER (r.cached_tokens > m.cached_tokens) AS more_reuse_turns,
    count(*) FILTER (r.cached_tokens < m.cached_tokens) AS less_reuse_turns,
    sum(greatest(r.cached_tokens - m.cached_tokens, 0)) AS measured_missed_tokens,
    sum(greatest(m.cached_tokens - r.cached_tokens, 0)) AS replay_missed_tokens
{part.shared_turns}
