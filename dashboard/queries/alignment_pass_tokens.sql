-- What the passes of a whole recording computed, and the most requests that any of them was told to be running.
SELECT
    count(*) AS passes,
    count(*) FILTER (num_prefill_requests > 0 AND sum_prefill_tokens IS NULL) AS tokens_unknown,
    coalesce(sum(sum_prefill_tokens), 0) AS new_tokens,
    coalesce(sum(num_decode_requests), 0) AS decode_tokens,
    max(num_running) AS most_running
FROM {run.passes}
