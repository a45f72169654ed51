-- The passes of a run inside one cell of the geometry table.
SELECT
    pass_index, start_ns, duration_ns, num_prefill_requests, sum_prefill_tokens, sum_prefill_kv_tokens,
    num_decode_requests, sum_decode_kv_tokens, num_waiting, resolution
FROM {run.passes_in}
WHERE class = $class
    AND ($prefill_requests IS NULL OR num_prefill_requests = $prefill_requests)
    AND ($decode_requests IS NULL OR num_decode_requests = $decode_requests)
    AND ($new_cell IS NULL OR CASE WHEN sum_prefill_tokens > 0 THEN floor($per_octave * log2(sum_prefill_tokens)) ELSE -1 END = $new_cell)
    AND ($prefill_kv_cell IS NULL OR CASE WHEN sum_prefill_kv_tokens > 0 THEN floor($per_octave * log2(sum_prefill_kv_tokens)) ELSE -1 END = $prefill_kv_cell)
    AND ($decode_kv_cell IS NULL OR CASE WHEN sum_decode_kv_tokens > 0 THEN floor($per_octave * log2(sum_decode_kv_tokens)) ELSE -1 END = $decode_kv_cell)
ORDER BY start_ns, pass_index
LIMIT $top
