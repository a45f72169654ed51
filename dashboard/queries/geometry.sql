-- Passes of one class in cells of equal geometry, measured beside replayed. Only cells that both sides hold have an error.
WITH {part.geometry_cells},
sums AS (
    SELECT
        prefill_requests, new_cell, prefill_kv_cell, decode_requests, decode_kv_cell,
        count(*) FILTER (side = 'measured') AS measured_passes,
        count(*) FILTER (side = 'replay') AS replay_passes,
        sum(duration_ns) FILTER (side = 'measured') AS measured_ns,
        sum(duration_ns) FILTER (side = 'replay') AS replay_ns
    FROM cells
    WHERE class = $class
    GROUP BY ALL
)
SELECT
    *,
    measured_ns / nullif(measured_passes, 0) AS measured_mean_ns,
    replay_ns / nullif(replay_passes, 0) AS replay_mean_ns,
    (replay_ns / nullif(replay_passes, 0)) / nullif(measured_ns / nullif(measured_passes, 0), 0) - 1 AS error,
    measured_ns / nullif(sum(measured_ns) OVER (), 0) AS measured_time_share,
    replay_ns / nullif(sum(replay_ns) OVER (), 0) AS replay_time_share
FROM sums
ORDER BY coalesce(measured_ns, 0) + coalesce(replay_ns, 0) DESC,
    prefill_requests, new_cell, prefill_kv_cell, decode_requests, decode_kv_cell
