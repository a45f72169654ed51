-- The full blocks of a prompt, by content: whether the first admission reused each, who had stored it and when, and when it was
-- evicted before and after.
WITH mine AS (
    SELECT unnest(prompt_block_hashes) AS hash, unnest(range(len(prompt_block_hashes))) AS block_index
    FROM {run.block_hashes}
    WHERE request_id = $request_id
),
moves AS (
    SELECT event_index, time_ns, kind, request_id, unnest(coalesce(content_hashes, block_hashes)) AS hash
    FROM {run.kv_events}
    WHERE kind IN ('store', 'evict')
),
lives AS (
    SELECT
        b.block_index,
        max(m.time_ns) FILTER (kind = 'store' AND time_ns < $admit_ns) AS stored_ns,
        arg_max(m.request_id, (m.time_ns, m.event_index)) FILTER (kind = 'store' AND time_ns < $admit_ns) AS stored_by,
        max(m.time_ns) FILTER (kind = 'evict' AND time_ns < $admit_ns) AS evicted_before_ns,
        min(m.time_ns) FILTER (kind = 'store' AND time_ns >= $admit_ns) AS stored_again_ns,
        min(m.time_ns) FILTER (kind = 'evict' AND time_ns >= $admit_ns) AS evicted_after_ns
    FROM mine b
    LEFT JOIN moves m ON m.hash = b.hash
    GROUP BY b.block_index
)
SELECT
    l.block_index,
    CASE
        WHEN $hit_blocks IS NULL THEN 'reuse not recorded'
        WHEN l.block_index < $hit_blocks THEN 'hit'
        WHEN l.stored_ns IS NULL THEN 'never stored before'
        WHEN l.evicted_before_ns >= l.stored_ns THEN 'evicted before'
        ELSE 'held, not hit'
    END AS state,
    coalesce(r.turn, '=' || l.stored_by) AS stored_by,
    l.stored_ns, l.evicted_before_ns, l.stored_again_ns, l.evicted_after_ns
FROM lives l
LEFT JOIN {run.requests} r ON r.request_id = l.stored_by
ORDER BY l.block_index
