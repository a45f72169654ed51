-- Blocks that the requests of a population computed and reused, by turn of the conversation; late turns share a row. Preemptions and
-- TTFT of the same requests stand beside them.
WITH used AS (
    SELECT
        request_id,
        count(*) FILTER (kind = 'store' AND NOT restored) AS computed_blocks,
        count(*) FILTER (use IN ('computed_lost', 'computed_preempted')) AS lost_blocks,
        count(*) FILTER (kind <> 'store' OR restored) AS reused_blocks,
        count(*) FILTER (use = 'reuse_first') AS reused_once_blocks
    FROM (SELECT request_id, kind, restored, {part.block_use} AS use FROM {run.block_moves} WHERE kind IN ('store', 'hit', 'readmit'))
    GROUP BY request_id
)
SELECT
    least(p.turn_index, $last_turn) AS turn_index,
    count(*) AS requests,
    coalesce(sum(u.computed_blocks), 0) AS computed_blocks,
    coalesce(sum(u.lost_blocks), 0) AS lost_blocks,
    sum(u.lost_blocks) * $block_size AS lost_tokens,
    sum(u.lost_blocks) / nullif(sum(u.computed_blocks), 0) AS lost_share,
    coalesce(sum(u.reused_blocks), 0) AS reused_blocks,
    coalesce(sum(u.reused_once_blocks), 0) AS reused_once_blocks,
    sum(u.reused_once_blocks) / nullif(sum(u.reused_blocks), 0) AS reused_once_share,
    sum(p.preemptions) AS preemptions,
    avg(p.ttft_ns) FILTER (p.status = 'ok') AS mean_ttft_ns
FROM {run.population} p
LEFT JOIN used u ON u.request_id = p.request_id
WHERE p.turn_index IS NOT NULL
GROUP BY 1
ORDER BY 1
