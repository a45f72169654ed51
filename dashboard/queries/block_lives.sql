-- Each copy that the pool held of a block of a conversation's prompts: who stored it, how often it was reused and by whom, when it
-- was last used, who evicted it and how long after that.
WITH blocks AS (
    SELECT block_index, hash, min(turn_index) AS first_turn
    FROM {run.known_blocks}
    WHERE conversation_id = $conversation_id AND of_prompt
    GROUP BY block_index, hash
),
own AS (
    SELECT m.hash, m.worker_id, m.dp_rank, m.stores_here AS copy, count(*) AS hits
    FROM {run.block_moves} m
    JOIN {run.requests} r ON r.request_id = m.request_id AND r.conversation_id = $conversation_id
    WHERE m.kind IN ('hit', 'readmit')
    GROUP BY ALL
)
SELECT
    b.block_index, b.first_turn, c.copy, c.stored_ns AS stored_time_ns, coalesce(s.turn, '=' || c.stored_by) AS stored_by,
    coalesce(o.hits, 0) AS own_hits, c.hits - coalesce(o.hits, 0) AS other_hits,
    c.last_used_ns AS last_used_time_ns, coalesce(u.turn, '=' || c.last_used_by) AS last_used_by,
    coalesce(c.evicted_ns, c.cleared_ns) AS gone_time_ns,
    CASE WHEN c.evicted_ns IS NOT NULL THEN 'evicted' WHEN c.cleared_ns IS NOT NULL THEN 'cleared' ELSE 'held' END AS became,
    coalesce(e.turn, '=' || c.evicted_by) AS evicted_by, c.evicted_rule, c.age_ns
FROM blocks b
JOIN {run.block_copies} c ON c.hash = b.hash
LEFT JOIN own o
    ON o.hash = c.hash AND o.copy = c.copy AND o.worker_id IS NOT DISTINCT FROM c.worker_id AND o.dp_rank IS NOT DISTINCT FROM c.dp_rank
LEFT JOIN {run.requests} s ON s.request_id = c.stored_by
LEFT JOIN {run.requests} u ON u.request_id = c.last_used_by
LEFT JOIN {run.requests} e ON e.request_id = c.evicted_by
ORDER BY b.block_index, c.stored_ns, c.copy
