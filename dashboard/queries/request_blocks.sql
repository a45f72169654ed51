-- The full blocks of a prompt, by content: whether the first admission reused each, who had stored it and when, and when it was
-- evicted before and after. What came before is told by the order in which the scheduler moved blocks, as in reuse_fates: producers
-- publish what they evict for an admission after it.
WITH mine AS (
    SELECT unnest(prompt_block_hashes) AS hash, unnest(range(len(prompt_block_hashes))) AS block_index, worker_id, dp_rank
    FROM {run.block_hashes}
    WHERE request_id = $request_id
),
admitted AS (SELECT min(move) AS move FROM {run.block_moves} WHERE request_id = $request_id),
seen AS (
    SELECT
        b.block_index, c.* EXCLUDE (hash),
        CASE WHEN a.move IS NULL THEN coalesce(c.stored_ns, c.last_used_ns) < $admit_ns ELSE c.move < a.move END AS earlier,
        coalesce(CASE WHEN a.move IS NULL THEN c.evicted_ns < $admit_ns ELSE c.evicted_move < a.move END, false) AS evicted
    FROM mine b
    CROSS JOIN admitted a
    LEFT JOIN {run.block_copies} c
        ON c.hash = b.hash AND coalesce(c.worker_id = b.worker_id, true) AND coalesce(c.dp_rank = b.dp_rank, true)
),
lives AS (
    SELECT
        block_index,
        coalesce(bool_or(earlier), false) AS stored,
        arg_max(evicted OR coalesce(cleared_ns <= $admit_ns, false), move) FILTER (earlier) AS gone,
        arg_max_null(stored_ns, move) FILTER (earlier) AS stored_ns,
        arg_max_null(stored_by, move) FILTER (earlier) AS stored_by,
        max(evicted_ns) FILTER (evicted) AS evicted_before_ns,
        min(stored_ns) FILTER (NOT earlier) AS stored_again_ns,
        min(evicted_ns) FILTER (NOT evicted) AS evicted_after_ns
    FROM seen
    GROUP BY block_index
)
SELECT
    l.block_index,
    CASE
        WHEN $hit_blocks IS NULL THEN 'reuse not recorded'
        WHEN l.block_index < $hit_blocks THEN 'hit'
        WHEN l.block_index < $hit_blocks + $restored_blocks THEN 'loaded from the host'
        WHEN NOT l.stored THEN 'never stored before'
        WHEN l.gone THEN 'evicted before'
        ELSE 'held, not hit'
    END AS state,
    coalesce(r.turn, '=' || l.stored_by) AS stored_by,
    l.stored_ns, l.evicted_before_ns, l.stored_again_ns, l.evicted_after_ns
FROM lives l
LEFT JOIN {run.requests} r ON r.request_id = l.stored_by
ORDER BY l.block_index
