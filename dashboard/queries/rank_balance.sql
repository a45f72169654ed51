-- Passes, work and time by rank; and of the steps that several ranks take together, how often each was the slowest (ties count for
-- each) and how long it waited for the slowest.
WITH ranks AS (
    SELECT
        worker_id, dp_rank, class, duration_ns, sum_prefill_tokens, num_decode_requests, kv_blocks_used,
        CASE WHEN step IS NOT NULL AND count(*) OVER together > 1 THEN max(duration_ns) OVER together END AS longest_ns
    FROM {run.passes_in}
    WINDOW together AS (PARTITION BY step)
)
SELECT
    worker_id, dp_rank,
    count(*) FILTER (class <> 'idle') AS passes,
    sum(duration_ns) AS time_ns,
    sum(sum_prefill_tokens) AS new_tokens,
    sum(num_decode_requests) AS decode_tokens,
    max(kv_blocks_used) AS max_blocks_used,
    count(longest_ns) AS steps,
    count(*) FILTER (duration_ns = longest_ns) AS slowest_steps,
    count(*) FILTER (duration_ns = longest_ns) / nullif(count(longest_ns), 0) AS slowest_share,
    sum(longest_ns - duration_ns) AS waited_ns
FROM ranks
GROUP BY worker_id, dp_rank
ORDER BY worker_id, dp_rank
