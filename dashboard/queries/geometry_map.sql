-- Shared cells of pass geometry on two axes, with the signed error weighted by the measured passes of each cell.
WITH passes AS (
    SELECT 'measured' AS side, * FROM {measured.passes_in}
    UNION ALL BY NAME
    SELECT 'replay' AS side, * FROM {replay.passes_in}
),
cells AS (
    SELECT side, duration_ns, num_prefill_requests AS prefill_requests, num_decode_requests AS decode_requests,
        CASE WHEN sum_prefill_tokens > 0 THEN floor($per_octave * log2(sum_prefill_tokens))::BIGINT ELSE -1 END AS new_cell,
        CASE WHEN sum_prefill_kv_tokens > 0 THEN floor($per_octave * log2(sum_prefill_kv_tokens))::BIGINT ELSE -1 END AS prefill_kv_cell,
        CASE WHEN sum_decode_kv_tokens > 0 THEN floor($per_octave * log2(sum_decode_kv_tokens))::BIGINT ELSE -1 END AS decode_kv_cell
    FROM passes
    WHERE class = $class
),
sums AS (
    SELECT
        prefill_requests, new_cell, prefill_kv_cell, decode_requests, decode_kv_cell,
        count(*) FILTER (side = 'measured') AS measured_passes,
        count(*) FILTER (side = 'replay') AS replay_passes,
        coalesce(sum(duration_ns) FILTER (side = 'measured'), 0) AS measured_ns,
        avg(duration_ns) FILTER (side = 'replay') AS replay_mean_ns
    FROM cells
    GROUP BY ALL
)
SELECT
    CASE $class WHEN 'decode_only' THEN decode_kv_cell ELSE new_cell END AS x_cell,
    CASE $class WHEN 'prefill_only' THEN prefill_kv_cell WHEN 'decode_only' THEN decode_requests ELSE decode_kv_cell END AS y_cell,
    sum(measured_passes * replay_mean_ns) FILTER (measured_passes > 0 AND replay_passes > 0)
        / nullif(sum(measured_ns) FILTER (measured_passes > 0 AND replay_passes > 0), 0) - 1 AS error,
    sum(measured_passes) AS measured_passes,
    sum(replay_passes) AS replay_passes,
    sum(measured_ns) / nullif(sum(sum(measured_ns)) OVER (), 0) AS measured_time_share
FROM sums
GROUP BY x_cell, y_cell
ORDER BY x_cell, y_cell
