-- What rests on each cell of pass geometry: half octaves of token counts, exact numbers of requests. Shares are of the whole replay.
WITH cells AS (
    SELECT
        class, prefill_requests, decode_requests,
        CASE WHEN new_tokens > 0 THEN floor($per_octave * log2(new_tokens))::BIGINT ELSE -1 END AS new_cell,
        CASE WHEN prefill_kv_tokens > 0 THEN floor($per_octave * log2(prefill_kv_tokens))::BIGINT ELSE -1 END AS prefill_kv_cell,
        CASE WHEN decode_kv_tokens > 0 THEN floor($per_octave * log2(decode_kv_tokens))::BIGINT ELSE -1 END AS decode_kv_cell,
        "count", modelled_ns, resolution, source
    FROM {run.coverage}
)
SELECT
    class, prefill_requests, new_cell, prefill_kv_cell, decode_requests, decode_kv_cell,
    count(*) AS geometries,
    sum("count") AS queries,
    sum("count") / sum(sum("count")) OVER () AS query_share,
    sum(modelled_ns) AS modelled_ns,
    sum(modelled_ns) / nullif(sum(sum(modelled_ns)) OVER (), 0) AS time_share,
    coalesce(sum(modelled_ns) FILTER (resolution IN ('exact', 'interpolated')), 0) / nullif(sum(modelled_ns), 0) AS inside_share,
    string_agg(DISTINCT resolution, ', ' ORDER BY resolution) AS resolutions,
    string_agg(DISTINCT source, ', ' ORDER BY source) AS sources,
    count(*) OVER () AS cells
FROM cells
GROUP BY class, prefill_requests, new_cell, prefill_kv_cell, decode_requests, decode_kv_cell
ORDER BY modelled_ns DESC, class, prefill_requests, new_cell, prefill_kv_cell, decode_requests, decode_kv_cell
LIMIT $top
