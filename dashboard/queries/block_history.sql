-- What happened to the blocks of a conversation's prompts, neighbouring blocks that one request moved at one time together: who stored
-- them, who of the conversation reused them, who evicted them, and how long after. Others store and evict them too; what
-- these reused is counted in block_lives.
WITH blocks AS (
    SELECT block_index, hash, min(turn_index) AS first_turn
    FROM {run.known_blocks}
    WHERE conversation_id = $conversation_id AND of_prompt
    GROUP BY block_index, hash
),
moves AS (
    SELECT
        b.block_index, b.first_turn, m.* EXCLUDE (age_ns) REPLACE (CASE WHEN m.restored THEN 'restore' ELSE m.kind END AS kind), m.stores_here > 0 AS again, coalesce(r.conversation_id = $conversation_id, false) AS own,
        coalesce(r.turn, '=' || m.request_id) AS turn,
        CASE WHEN m.kind = 'evict' THEN c.age_ns ELSE m.time_ns - m.last_move_ns END AS since_last_ns
    FROM blocks b
    JOIN {run.block_moves} m ON m.hash = b.hash
    LEFT JOIN {run.requests} r ON r.request_id = m.request_id
    LEFT JOIN {run.block_copies} c
        ON m.kind = 'evict' AND c.hash = m.hash AND c.copy = m.stores_here
        AND c.worker_id IS NOT DISTINCT FROM m.worker_id AND c.dp_rank IS NOT DISTINCT FROM m.dp_rank
    WHERE m.kind IN ('store', 'evict') OR r.conversation_id = $conversation_id
),
runs AS (
    SELECT
        *,
        block_index - row_number() OVER (PARTITION BY kind, time_ns, request_id, rule, worker_id, dp_rank, again ORDER BY block_index, move) AS run
    FROM moves
)
SELECT
    time_ns, kind, min(block_index) AS first_block, max(block_index) AS last_block, count(*) AS blocks, any_value(turn) AS turn,
    any_value(own) AS own, min(first_turn) AS first_turn, kind = 'store' AND bool_or(runs.again) AS again,
    min(since_last_ns) AS since_last_from_ns, max(since_last_ns) AS since_last_to_ns,
    any_value(reason) AS reason, rule, any_value(pass_index) AS pass_index, request_id
FROM runs
GROUP BY kind, time_ns, request_id, rule, worker_id, dp_rank, runs.again, run
ORDER BY time_ns, min(move)
