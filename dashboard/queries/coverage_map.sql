-- Timing queries of one class on two axes of their geometry, binned by octave, with the share of their time inside the domain.
WITH points AS (
    SELECT
        "count", modelled_ns, resolution,
        CASE $x_axis WHEN 'new_tokens' THEN new_tokens WHEN 'prefill_kv_tokens' THEN prefill_kv_tokens WHEN 'decode_requests' THEN decode_requests WHEN 'decode_kv_tokens' THEN decode_kv_tokens WHEN 'prefill_requests' THEN prefill_requests END AS x,
        CASE $y_axis WHEN 'new_tokens' THEN new_tokens WHEN 'prefill_kv_tokens' THEN prefill_kv_tokens WHEN 'decode_requests' THEN decode_requests WHEN 'decode_kv_tokens' THEN decode_kv_tokens WHEN 'prefill_requests' THEN prefill_requests END AS y
    FROM {run.coverage}
    WHERE class = $class
)
SELECT
    CASE WHEN x > 0 THEN floor($per_octave * log2(x))::BIGINT ELSE -1 END AS x_cell,
    CASE WHEN y > 0 THEN floor($per_octave * log2(y))::BIGINT ELSE -1 END AS y_cell,
    sum("count") AS queries,
    sum(modelled_ns) AS modelled_ns,
    coalesce(sum(modelled_ns) FILTER (resolution IN ('exact', 'interpolated')), 0) / nullif(sum(modelled_ns), 0) AS inside_share
FROM points
GROUP BY x_cell, y_cell
ORDER BY x_cell, y_cell
