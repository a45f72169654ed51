-- The largest geometry of the passes of one class.
SELECT
    max(sum_decode_kv_tokens) AS decode_kv_tokens,
    max(sum_prefill_tokens) AS new_tokens,
    max(sum_prefill_kv_tokens) AS prefill_kv_tokens,
    max(num_decode_requests) AS decode_requests
FROM {run.passes_in}
WHERE class = $class
