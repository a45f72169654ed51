-- Distinct timing queries that were answered from outside the measured domain, those with the most time first.
SELECT
    class, prefill_requests, new_tokens, prefill_kv_tokens, decode_requests, decode_kv_tokens, verify_width,
    resolution, source, sites, "count" AS queries, modelled_ns,
    modelled_ns / nullif((SELECT sum(modelled_ns) FROM {run.coverage}), 0) AS time_share
FROM {run.coverage}
WHERE resolution NOT IN ('exact', 'interpolated')
ORDER BY modelled_ns DESC, class, prefill_requests, new_tokens, prefill_kv_tokens, decode_requests, decode_kv_tokens
LIMIT $top
