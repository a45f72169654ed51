-- Passes of one class in cells of equal geometry, measured beside replayed. Tokens fall into cells between powers of
-- two to the 1/$per_octave; requests are counted exactly. Only cells that both sides hold have an error.
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
        sum(duration_ns) FILTER (side = 'measured') AS measured_ns,
        sum(duration_ns) FILTER (side = 'replay') AS replay_ns
    FROM cells
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
