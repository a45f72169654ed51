-- The blocks of a conversation's prompts and what happened to each copy of them that the pool held. Blocks are named by content.
prompt AS (
    SELECT turn_index, unnest(prompt_block_hashes) AS hash, unnest(range(len(prompt_block_hashes))) AS block_index
    FROM {run.block_hashes}
    WHERE conversation_id = $conversation_id
),
blocks AS (
    SELECT block_index, hash, min(turn_index) AS first_turn
    FROM prompt
    GROUP BY block_index, hash
),
moves AS MATERIALIZED (
    SELECT
        b.block_index, b.first_turn, m.*, r.conversation_id, r.turn_index, r.released_ns,
        m.stores_here + (m.kind = 'store')::BIGINT AS copy,
        m.time_ns - lag(m.time_ns) OVER (PARTITION BY b.block_index, b.hash, m.worker_id, m.dp_rank ORDER BY m.move) AS since_event_ns
    FROM blocks b
    JOIN {run.block_moves} m ON m.hash = b.hash
    LEFT JOIN {run.requests} r ON r.request_id = m.request_id
),
copies AS (
    SELECT
        block_index, first_turn, hash, worker_id, dp_rank, copy,
        min(move) AS move,
        any_value(time_ns) FILTER (kind = 'store') AS stored_ns,
        any_value(request_id) FILTER (kind = 'store') AS stored_by,
        count(*) FILTER (kind IN ('hit', 'readmit') AND conversation_id = $conversation_id) AS own_hits,
        count(*) FILTER (kind IN ('hit', 'readmit') AND conversation_id IS DISTINCT FROM $conversation_id) AS other_hits,
        any_value(time_ns) FILTER (kind = 'evict') AS evicted_ns,
        any_value(request_id) FILTER (kind = 'evict') AS evicted_by,
        any_value(rule) FILTER (kind = 'evict') AS evicted_rule,
        any_value(age_ns) FILTER (kind = 'evict') AS age_ns
    FROM moves
    GROUP BY ALL
),
used AS MATERIALIZED (  -- A request uses a block until it is released; one that went on longer had given it up at a preemption.
    SELECT
        c.*,
        max(CASE WHEN m.released_ns <= coalesce(c.evicted_ns, m.released_ns) THEN m.released_ns ELSE m.time_ns END) AS last_used_ns,
        arg_max_null(m.request_id, m.move) AS last_used_by
    FROM copies c
    LEFT JOIN moves m
        ON m.hash = c.hash AND m.block_index = c.block_index AND m.copy = c.copy AND m.kind <> 'evict'
        AND m.worker_id IS NOT DISTINCT FROM c.worker_id AND m.dp_rank IS NOT DISTINCT FROM c.dp_rank
    GROUP BY ALL
)
