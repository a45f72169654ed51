-- What happened to the blocks of a conversation's prompts, neighbouring blocks that one request moved at one time together: who stored
-- them, who of the conversation reused them, who evicted them, and how long after. Others store and evict them too; what
-- these reused is counted in block_lives.
WITH
{part.block_copies},
own AS (
    SELECT
        m.*,
        CASE m.kind WHEN 'evict' THEN coalesce(m.age_ns, m.time_ns - u.last_used_ns) ELSE m.since_event_ns END AS since_last_ns,
        m.block_index - row_number() OVER (
            PARTITION BY m.kind, m.time_ns, m.request_id, m.rule, m.worker_id, m.dp_rank, m.copy > 1 ORDER BY m.block_index, m.move
        ) AS run
    FROM moves m
    LEFT JOIN used u
        ON m.kind = 'evict' AND u.hash = m.hash AND u.block_index = m.block_index AND u.copy = m.copy
        AND u.worker_id IS NOT DISTINCT FROM m.worker_id AND u.dp_rank IS NOT DISTINCT FROM m.dp_rank
    WHERE m.kind IN ('store', 'evict') OR m.conversation_id = $conversation_id
),
names AS (
    SELECT request_id, {part.turn}
    FROM {run.requests}
    WHERE conversation_id IN (SELECT conversation_id FROM own) OR conversation_id IS NULL
)
SELECT
    time_ns, kind, min(block_index) AS first_block, max(block_index) AS last_block, count(*) AS blocks,
    coalesce(any_value(n.turn), '=' || o.request_id) AS turn, any_value(conversation_id) = $conversation_id AS own,
    min(first_turn) AS first_turn, copy > 1 AS again, min(since_last_ns) AS since_last_from_ns, max(since_last_ns) AS since_last_to_ns,
    any_value(reason) AS reason, rule, any_value(pass_index) AS pass_index, o.request_id
FROM own o
LEFT JOIN names n ON n.request_id = o.request_id
GROUP BY kind, time_ns, o.request_id, rule, worker_id, dp_rank, copy > 1, run
ORDER BY time_ns, min(move)
