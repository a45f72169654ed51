-- Measured passes of one class on the planes of `coverage_map`: where recorded passes price a replay themselves.
WITH points AS (
    SELECT
        CASE $plane WHEN 'decode' THEN sum_decode_kv_tokens / num_decode_requests ELSE sum_prefill_tokens END AS x,
        CASE $plane WHEN 'decode' THEN num_decode_requests ELSE sum_prefill_kv_tokens / num_prefill_requests END AS y
    FROM {run.passes}
    WHERE
        class = $class
        AND CASE $plane WHEN 'decode' THEN num_decode_requests ELSE num_prefill_requests END > 0
        AND (len($fit_phases) = 0 OR list_contains($fit_phases, phase))
)
SELECT
    CASE WHEN x > 0 THEN floor($per_octave * log2(x))::BIGINT ELSE -1 END AS x_cell,
    CASE WHEN $plane = 'decode' THEN y::BIGINT WHEN y > 0 THEN floor($per_octave * log2(y))::BIGINT ELSE -1 END AS y_cell,
    avg(x) AS x,
    avg(y) AS y,
    count(*) AS passes
FROM points
GROUP BY x_cell, y_cell
ORDER BY x_cell, y_cell
