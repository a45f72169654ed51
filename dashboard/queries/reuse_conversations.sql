-- Conversations by how far the reuse of their source-turns differs on the two sides, all differences taken together.
SELECT
    m.conversation_id,
    count(*) AS turns,
    count(*) FILTER (r.cached_tokens <> m.cached_tokens) AS changed_turns,
    sum(abs(r.cached_tokens - m.cached_tokens)) AS changed_tokens
{part.shared_turns}
    AND m.conversation_id IS NOT NULL
GROUP BY m.conversation_id
ORDER BY changed_tokens DESC, m.conversation_id
