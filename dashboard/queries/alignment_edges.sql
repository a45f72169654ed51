-- Of the requests in flight in a window: the share of their time that lies outside of it, as of what lies inside.
WITH sent AS (
    SELECT dispatched_ns, end_ns
    FROM {run.requests}
    WHERE dispatched_ns < $end_ns AND end_ns > $start_ns
)
SELECT
    sum(end_ns - dispatched_ns) / nullif(sum(least(end_ns, $end_ns) - greatest(dispatched_ns, $start_ns)), 0) - 1 AS edges
FROM sent
