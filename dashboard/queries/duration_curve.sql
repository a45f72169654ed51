-- Duration of the passes of one class against one axis of their geometry, in even bins of the axis, with the mean
-- geometry of each bin.
WITH points AS (
    SELECT
        duration_ns,
        CASE $axis
            WHEN 'decode_kv_tokens' THEN sum_decode_kv_tokens
            WHEN 'new_tokens' THEN sum_prefill_tokens
            WHEN 'prefill_kv_tokens' THEN sum_prefill_kv_tokens
            WHEN 'decode_requests' THEN num_decode_requests
        END AS x,
        num_prefill_requests,
        sum_prefill_tokens,
        sum_prefill_kv_tokens,
        num_decode_requests,
        sum_decode_kv_tokens
    FROM {run.passes_in}
    WHERE class = $class AND duration_ns IS NOT NULL
)
SELECT
    least(x * $bins // ($x_max + 1), $bins - 1) AS bin,
    count(*) AS passes,
    avg(x) AS x,
    avg(duration_ns) AS mean_ns,
    quantile_cont(duration_ns, 0.1) AS p10_ns,
    quantile_cont(duration_ns, 0.5) AS p50_ns,
    quantile_cont(duration_ns, 0.9) AS p90_ns,
    avg(num_prefill_requests) AS prefill_requests,
    avg(sum_prefill_tokens) AS new_tokens,
    avg(sum_prefill_kv_tokens) AS prefill_kv_tokens,
    avg(num_decode_requests) AS decode_requests,
    avg(sum_decode_kv_tokens) AS decode_kv_tokens
FROM points
WHERE x IS NOT NULL
GROUP BY bin
ORDER BY bin
