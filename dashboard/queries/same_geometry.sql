-- By class: shares of each side's time in cells of equal geometry that both hold, and the signed error there.
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
    sum(measured_passes) AS measured_passes,
    sum(replay_passes) AS replay_passes,
    count(*) FILTER (measured_passes > 0 AND replay_passes > 0) AS shared_cells,
    coalesce(sum(measured_ns) FILTER (replay_passes > 0), 0) / nullif(sum(measured_ns), 0) AS measured_time_shared,
    coalesce(sum(replay_ns) FILTER (measured_passes > 0), 0) / nullif(sum(replay_ns), 0) AS replay_time_shared,
    sum(measured_passes * (replay_ns / replay_passes)) FILTER (measured_passes > 0 AND replay_passes > 0)
        / nullif(sum(measured_ns) FILTER (measured_passes > 0 AND replay_passes > 0), 0) - 1 AS error
FROM sums
GROUP BY class
ORDER BY list_position(['prefill_only', 'decode_only', 'mixed'], class)
