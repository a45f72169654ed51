-- Each copy that the pool held of a block of a conversation's prompts: who stored it, how often it was reused and by whom, when it
-- was last used, who evicted it and how long after that. A copy of number 0 was there before the first event.
WITH
{part.block_copies},
names AS (
    SELECT request_id, {part.turn}
    FROM {run.requests}
    WHERE conversation_id IS NULL OR conversation_id IN (
        SELECT conversation_id FROM {run.requests}
        WHERE request_id IN (SELECT unnest([stored_by, last_used_by, evicted_by]) FROM used)
    )
),
ended AS (
    SELECT
        u.*,
        CASE WHEN evicted_ns IS NULL THEN (
            SELECT min(c.time_ns)
            FROM {run.block_moves} c
            WHERE c.kind = 'clear' AND c.move > u.move AND c.worker_id IS NOT DISTINCT FROM u.worker_id AND c.dp_rank IS NOT DISTINCT FROM u.dp_rank
        ) END AS cleared_ns
    FROM used u
)
SELECT
    l.block_index, l.first_turn, l.copy, l.stored_ns AS stored_time_ns, coalesce(s.turn, '=' || l.stored_by) AS stored_by, l.own_hits, l.other_hits,
    l.last_used_ns AS last_used_time_ns, coalesce(u.turn, '=' || l.last_used_by) AS last_used_by,
    coalesce(l.evicted_ns, l.cleared_ns) AS gone_time_ns,
    CASE WHEN l.evicted_ns IS NOT NULL THEN 'evicted' WHEN l.cleared_ns IS NOT NULL THEN 'cleared' ELSE 'held' END AS became,
    coalesce(e.turn, '=' || l.evicted_by) AS evicted_by, l.evicted_rule,
    coalesce(l.age_ns, l.evicted_ns - l.last_used_ns) AS age_ns
FROM ended l
LEFT JOIN names s ON s.request_id = l.stored_by
LEFT JOIN names u ON u.request_id = l.last_used_by
LEFT JOIN names e ON e.request_id = l.evicted_by
ORDER BY l.block_index, l.stored_ns, l.copy
