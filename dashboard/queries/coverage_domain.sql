-- Measured passes of one class on the same two axes: what a timing model could be fitted on.
WITH points AS (
    SELECT
        CASE $x_axis WHEN 'new_tokens' THEN sum_prefill_tokens WHEN 'prefill_kv_tokens' THEN sum_prefill_kv_tokens WHEN 'decode_requests' THEN num_decode_requests WHEN 'decode_kv_tokens' THEN sum_decode_kv_tokens WHEN 'prefill_requests' THEN num_prefill_requests END AS x,
        CASE $y_axis WHEN 'new_tokens' THEN sum_prefill_tokens WHEN 'prefill_kv_tokens' THEN sum_prefill_kv_tokens WHEN 'decode_requests' THEN num_decode_requests WHEN 'decode_kv_tokens' THEN sum_decode_kv_tokens WHEN 'prefill_requests' THEN num_prefill_requests END AS y
    FROM {run.passes}
    WHERE class = $class AND (len($fit_phases) = 0 OR list_contains($fit_phases, phase))
)
SELECT
    CASE WHEN x > 0 THEN floor($per_octave * log2(x))::BIGINT ELSE -1 END AS x_cell,
    CASE WHEN y > 0 THEN floor($per_octave * log2(y))::BIGINT ELSE -1 END AS y_cell,
    count(*) AS passes
FROM points
GROUP BY x_cell, y_cell
ORDER BY x_cell, y_cell
