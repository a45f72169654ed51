-- What each lane does in a time range: one row per request, with the time since its lane's earlier requests all ended
-- (unknown where the end of one is). `until_ns` is where it is drawn to: a request in flight at the close of the
-- recording stays, of one that ended at a time nobody recorded only the dispatch is known.
WITH ordered AS (  -- narrow, as what a window sorts it carries along; what is sent later changes nothing
    SELECT
        request_number, dispatched_ns,
        coalesce(end_ns, CASE WHEN status = 'in_flight' THEN greatest($end_ns, dispatched_ns) ELSE dispatched_ns END) AS until_ns,
        CASE WHEN bool_and(end_ns IS NOT NULL) OVER earlier THEN max(end_ns) OVER earlier END AS lane_free_ns
    FROM {run.requests}
    WHERE dispatched_ns < $end_ns AND lane >= $first_lane AND lane < $first_lane + $lanes
    WINDOW earlier AS (PARTITION BY lane ORDER BY request_number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
),
shown AS (SELECT * EXCLUDE (dispatched_ns) FROM ordered WHERE until_ns >= $start_ns)
SELECT
    lane, play_id, conversation_id, turn_index, agent_depth, request_id, phase, status,
    dispatched_ns, end_ns, until_ns, CASE WHEN lane_free_ns IS NOT NULL THEN greatest(dispatched_ns - lane_free_ns, 0) END AS idle_before_ns
FROM shown
JOIN {run.requests} r USING (request_number)
ORDER BY lane, dispatched_ns, request_id
