-- Shared cells of pass geometry on two axes, with the signed error weighted by the measured passes of each cell.
WITH {part.geometry_cells},
sums AS (
    SELECT
        prefill_requests, new_cell, prefill_kv_cell, decode_requests, decode_kv_cell,
        count(*) FILTER (side = 'measured') AS measured_passes,
        count(*) FILTER (side = 'replay') AS replay_passes,
        coalesce(sum(duration_ns) FILTER (side = 'measured'), 0) AS measured_ns,
        avg(duration_ns) FILTER (side = 'replay') AS replay_mean_ns
    FROM cells
    WHERE class = $class
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
