-- Passes, work and time by rank.
SELECT
    worker_id, dp_rank,
    count(*) FILTER (class <> 'idle') AS passes,
    sum(duration_ns) AS time_ns,
    sum(sum_prefill_tokens) AS new_tokens,
    sum(num_decode_requests) AS decode_tokens,
    max(kv_blocks_used) AS max_blocks_used
FROM {run.passes_in}
GROUP BY worker_id, dp_rank
ORDER BY worker_id, dp_rank
