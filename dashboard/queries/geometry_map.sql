-- Passes of both sides laid on the two axes of their class. The error is that of the mean duration at equal geometry: in finer
-- cells that both sides hold, weighted by the measured passes. `worth_ns` is what it makes of the replay's own passes there.
WITH {part.geometry_cells},
sums AS (
    SELECT
        class, prefill_requests, new_cell, prefill_kv_cell, decode_requests, decode_kv_cell,
        count(*) FILTER (side = 'measured') AS measured_passes,
        count(*) FILTER (side = 'replay') AS replay_passes,
        coalesce(sum(duration_ns) FILTER (side = 'measured'), 0) AS measured_ns,
        coalesce(sum(duration_ns) FILTER (side = 'replay'), 0) AS replay_ns
    FROM cells
    GROUP BY ALL
)
SELECT
    class,
    CASE class WHEN 'decode_only' THEN decode_kv_cell ELSE new_cell END AS x_cell,
    CASE class WHEN 'prefill_only' THEN prefill_kv_cell WHEN 'decode_only' THEN decode_requests ELSE decode_kv_cell END AS y_cell,
    sum(measured_passes * (replay_ns / replay_passes)) FILTER (measured_passes > 0 AND replay_passes > 0)
        / nullif(sum(measured_ns) FILTER (measured_passes > 0 AND replay_passes > 0), 0) - 1 AS error,
    sum(measured_passes) AS measured_passes,
    sum(replay_passes) AS replay_passes,
    sum(measured_ns) / nullif(sum(sum(measured_ns)) OVER (), 0) AS measured_time_share,
    sum(replay_ns) / nullif(sum(sum(replay_ns)) OVER (), 0) AS replay_time_share,
    sum(replay_ns - replay_passes * (measured_ns / measured_passes)) FILTER (measured_passes > 0 AND replay_passes > 0) AS worth_ns
FROM sums
GROUP BY class, x_cell, y_cell
ORDER BY list_position(['prefill_only', 'decode_only', 'mixed'], class), x_cell, y_cell
