-- Over a window: requests between their first and last visible token (time average), how many got their first, and the time per
-- token after the first, pooled over the successes among them.
WITH seen AS (
    SELECT status, output_tokens, first_visible_ns, coalesce(last_visible_ns, end_ns) AS last_ns
    FROM {run.requests}
    WHERE first_visible_ns < $end_ns AND coalesce(last_visible_ns, end_ns) >= $start_ns
)
SELECT
    count(*) AS requests,
    coalesce(sum(least(last_ns, $end_ns) - greatest(first_visible_ns, $start_ns)), 0) / ($end_ns - $start_ns) AS decoding,
    count(*) FILTER (first_visible_ns >= $start_ns) AS first_tokens,
    sum(last_ns - first_visible_ns) FILTER (status = 'ok' AND output_tokens >= 2)
        / nullif(sum(output_tokens - 1) FILTER (status = 'ok' AND output_tokens >= 2), 0) AS per_token_ns
FROM seen
