-- By class: the gap in pass time in three parts that sum to it, the share of each side's time in cells of equal geometry that both
-- hold, and the signed error there. `count_ns` is more or fewer passes at the measured mean, `duration_ns` longer or shorter
-- passes at equal geometry, `geometry_ns` what is left: passes of another geometry.
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
),
parts AS (
    SELECT
        class,
        sum(measured_passes) AS measured_passes,
        sum(replay_passes) AS replay_passes,
        sum(measured_ns) AS measured_ns,
        sum(replay_ns) AS replay_ns,
        count(*) FILTER (measured_passes > 0 AND replay_passes > 0) AS shared_cells,
        coalesce(sum(measured_ns) FILTER (replay_passes > 0), 0) / nullif(sum(measured_ns), 0) AS measured_time_shared,
        coalesce(sum(replay_ns) FILTER (measured_passes > 0), 0) / nullif(sum(replay_ns), 0) AS replay_time_shared,
        sum(measured_passes * (replay_ns / replay_passes)) FILTER (measured_passes > 0 AND replay_passes > 0)
            / nullif(sum(measured_ns) FILTER (measured_passes > 0 AND replay_passes > 0), 0) - 1 AS error,
        sum(replay_ns) - sum(measured_ns) AS gap_ns,
        coalesce((sum(replay_passes) - sum(measured_passes)) * (sum(measured_ns) / nullif(sum(measured_passes), 0)), sum(replay_ns))
            AS count_ns,
        coalesce(sum(replay_ns - replay_passes * (measured_ns / measured_passes)) FILTER (measured_passes > 0 AND replay_passes > 0), 0)
            AS duration_ns
    FROM sums
    GROUP BY class
)
SELECT *, gap_ns - count_ns - duration_ns AS geometry_ns
FROM parts
ORDER BY list_position(['prefill_only', 'decode_only', 'mixed'], class)
