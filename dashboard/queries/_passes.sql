-- Passes of a run with their class.
SELECT
    *,
    CASE
        WHEN num_prefill_requests > 0 AND num_decode_requests > 0 THEN 'mixed'
        WHEN num_prefill_requests > 0 THEN 'prefill_only'
        WHEN num_decode_requests > 0 THEN 'decode_only'
        ELSE 'idle'
    END AS class
FROM {raw}
