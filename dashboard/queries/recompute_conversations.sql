-- Conversations of one run, the one that computed most blocks again after their eviction first.
SELECT
    r.conversation_id,
    count(m.move) FILTER ({part.block_use} IN ('computed_lost', 'computed_preempted')) AS lost_blocks
FROM {run.population} r
LEFT JOIN {run.block_moves} m ON m.request_id = r.request_id AND m.kind = 'store' AND NOT m.restored
WHERE r.conversation_id IS NOT NULL
GROUP BY r.conversation_id
ORDER BY lost_blocks DESC, r.conversation_id
