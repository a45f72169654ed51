-- Passes that did work with their geometry and duration, over the whole recording; every $every-th where there are many.
SELECT
    class, phase, start_ns, duration_ns,
    num_prefill_requests AS prefill_requests,
    sum_prefill_tokens AS new_tokens,
    sum_prefill_kv_tokens AS prefill_kv_tokens,
    num_decode_requests AS decode_requests,
    sum_decode_kv_tokens AS decode_kv_tokens
FROM {run.passes}
WHERE class <> 'idle' AND duration_ns > 0 AND pass_index % $every = 0
ORDER BY start_ns, pass_index
