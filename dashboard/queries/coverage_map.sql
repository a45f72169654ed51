-- Timing queries of one class on the plane of their decode part (KV tokens per request, requests) or of their prefill part (new
-- tokens, KV tokens per prompt), in cells of $per_octave per factor of two (requests: exact), by resolution; each at its mean geometry.
-- $ranks: among how many ranks the requests of a query are spread whose KV is that of one rank.
WITH points AS (
    SELECT
        "count", modelled_ns, resolution,
        CASE $plane WHEN 'decode' THEN decode_kv_tokens / ceil(decode_requests / $ranks) ELSE new_tokens END AS x,
        CASE $plane WHEN 'decode' THEN decode_requests ELSE prefill_kv_tokens / prefill_requests END AS y
    FROM {run.coverage}
    WHERE class = $class AND CASE $plane WHEN 'decode' THEN decode_requests ELSE prefill_requests END > 0
)
SELECT
    resolution,
    CASE WHEN x > 0 THEN floor($per_octave * log2(x))::BIGINT ELSE -1 END AS x_cell,
    CASE WHEN $plane = 'decode' THEN y::BIGINT WHEN y > 0 THEN floor($per_octave * log2(y))::BIGINT ELSE -1 END AS y_cell,
    sum(x * "count") / sum("count") AS x,
    sum(y * "count") / sum("count") AS y,
    count(*) AS geometries,
    sum("count") AS queries,
    sum(modelled_ns) AS modelled_ns,
    sum(modelled_ns) / nullif(sum(sum(modelled_ns)) OVER (), 0) AS time_share
FROM points
GROUP BY resolution, x_cell, y_cell
ORDER BY modelled_ns DESC, resolution, x_cell, y_cell
