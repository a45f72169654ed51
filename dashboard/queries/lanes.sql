-- What each lane does in a time range: one row per request, with the time since its lane's earlier requests all ended.
WITH ordered AS (
    SELECT
        *,
        max(end_ns) OVER (PARTITION BY lane ORDER BY dispatched_ns, request_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS lane_free_ns
    FROM {run.requests}
    WHERE dispatched_ns IS NOT NULL AND lane IS NOT NULL
)
SELECT
    lane, play_id, conversation_id, turn_index, agent_depth, request_id, phase, status,
    dispatched_ns, end_ns, CASE WHEN lane_free_ns IS NOT NULL THEN greatest(dispatched_ns - lane_free_ns, 0) END AS idle_before_ns
FROM ordered
WHERE dispatched_ns < $end_ns AND coalesce(end_ns, $end_ns) >= $start_ns AND lane >= $first_lane AND lane < $first_lane + $lanes
ORDER BY lane, dispatched_ns, request_id
