-- Passes that did work, of both sides, in cells of equal geometry. Tokens fall into cells between powers of two to
-- the 1/$per_octave; requests are counted exactly.
passes AS (
    SELECT 'measured' AS side, class, duration_ns, num_prefill_requests, sum_prefill_tokens, sum_prefill_kv_tokens,
        num_decode_requests, sum_decode_kv_tokens
    FROM {measured.passes_in}
    UNION ALL
    SELECT 'replay', class, duration_ns, num_prefill_requests, sum_prefill_tokens, sum_prefill_kv_tokens,
        num_decode_requests, sum_decode_kv_tokens
    FROM {replay.passes_in}
),
cells AS (
    SELECT side, class, duration_ns, num_prefill_requests AS prefill_requests, num_decode_requests AS decode_requests,
        CASE WHEN sum_prefill_tokens > 0 THEN floor($per_octave * log2(sum_prefill_tokens))::BIGINT ELSE -1 END AS new_cell,
        CASE WHEN sum_prefill_kv_tokens > 0 THEN floor($per_octave * log2(sum_prefill_kv_tokens))::BIGINT ELSE -1 END AS prefill_kv_cell,
        CASE WHEN sum_decode_kv_tokens > 0 THEN floor($per_octave * log2(sum_decode_kv_tokens))::BIGINT ELSE -1 END AS decode_kv_cell
    FROM passes
    WHERE class <> 'idle'
)
