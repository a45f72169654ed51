-- Token hit ratio over time: successful requests by the bin of their first admission (of their dispatch where that is unknown).
WITH placed AS (
    SELECT *, (coalesce(first_admit_ns, dispatched_ns) - $start_ns) * $bins // ($end_ns - $start_ns) AS bin
    FROM {run.requests}
    WHERE status = 'ok' AND cached_tokens IS NOT NULL
        AND coalesce(first_admit_ns, dispatched_ns) >= $start_ns AND coalesce(first_admit_ns, dispatched_ns) < $end_ns
)
SELECT
    $start_ns + bin * ($end_ns - $start_ns) // $bins AS time_ns,
    count(*) AS requests,
    sum(cached_tokens) AS cached_tokens,
    sum(input_tokens) AS prompt_tokens,
    sum(cached_tokens) / nullif(sum(input_tokens), 0) AS hit_ratio
FROM placed
GROUP BY bin
ORDER BY bin
