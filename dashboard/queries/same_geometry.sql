-- Equal geometry, cell by cell on the two axes of a class (NULL axes: the whole class). The error is that of the mean duration in
-- finer cells that both sides hold, weighted by the measured passes; shares are of all pass time of a side. The gap in pass time has
-- three parts that sum to it: `count_ns` is more or fewer passes at the measured mean, `duration_ns` longer or shorter passes at equal
-- geometry, `geometry_ns` what is left: passes of another geometry.
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
laid AS (
    SELECT
        *,
        CASE class WHEN 'decode_only' THEN decode_kv_cell ELSE new_cell END AS x_cell,
        CASE class WHEN 'prefill_only' THEN prefill_kv_cell WHEN 'decode_only' THEN decode_requests ELSE decode_kv_cell END AS y_cell,
        measured_passes > 0 AND replay_passes > 0 AS shared,
        measured_ns / nullif(measured_passes, 0) AS measured_mean_ns,
        replay_ns / nullif(replay_passes, 0) AS replay_mean_ns
    FROM sums
),
parts AS (
    SELECT
        class, x_cell, y_cell,
        sum(measured_passes) AS measured_passes,
        sum(replay_passes) AS replay_passes,
        sum(measured_ns) AS measured_ns,
        sum(replay_ns) AS replay_ns,
        coalesce(sum(measured_ns) FILTER (shared), 0) / nullif(sum(measured_ns), 0) AS measured_time_shared,
        coalesce(sum(replay_ns) FILTER (shared), 0) / nullif(sum(replay_ns), 0) AS replay_time_shared,
        sum(measured_passes * replay_mean_ns) FILTER (shared) / nullif(sum(measured_ns) FILTER (shared), 0) - 1 AS error,
        sum(replay_ns) - sum(measured_ns) AS gap_ns,
        coalesce((sum(replay_passes) - sum(measured_passes)) * (sum(measured_ns) / nullif(sum(measured_passes), 0)), sum(replay_ns))
            AS count_ns,
        coalesce(sum(replay_ns - replay_passes * measured_mean_ns) FILTER (shared), 0) AS duration_ns
    FROM laid
    GROUP BY GROUPING SETS ((class, x_cell, y_cell), (class))
)
SELECT
    *,
    gap_ns - count_ns - duration_ns AS geometry_ns,
    measured_ns / nullif(sum(measured_ns) OVER (PARTITION BY x_cell IS NULL), 0) AS measured_time_share,
    replay_ns / nullif(sum(replay_ns) OVER (PARTITION BY x_cell IS NULL), 0) AS replay_time_share
FROM parts
ORDER BY list_position(['prefill_only', 'decode_only', 'mixed'], class), x_cell, y_cell
