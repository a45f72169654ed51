-- What happened to each block of a conversation's prompts: who stored it, who hit it, who evicted it, and how long after
-- it was last stored or hit. Blocks are named by content, so other conversations that share them appear too.
WITH prompt AS (
    SELECT turn_index, unnest(prompt_block_hashes) AS hash, unnest(range(len(prompt_block_hashes))) AS block_index
    FROM {run.block_hashes}
    WHERE conversation_id = $conversation_id
),
blocks AS (
    SELECT block_index, hash, min(turn_index) AS first_turn
    FROM prompt
    GROUP BY block_index, hash
),
moves AS (
    SELECT event_index, time_ns, kind, request_id, reason, age_ns, unnest(coalesce(content_hashes, block_hashes)) AS hash
    FROM {run.kv_events}
    WHERE kind IN ('store', 'hit', 'evict')
)
SELECT
    b.block_index,
    b.first_turn,
    m.time_ns,
    m.kind,
    m.request_id,
    r.conversation_id,
    r.turn_index,
    m.reason,
    coalesce(m.age_ns, m.time_ns - lag(m.time_ns) OVER (PARTITION BY b.block_index, b.hash ORDER BY m.time_ns, m.event_index)) AS since_last_ns,
    m.event_index
FROM blocks b
JOIN moves m ON m.hash = b.hash
LEFT JOIN {run.requests} r ON r.request_id = m.request_id
ORDER BY b.block_index, m.time_ns, m.event_index
