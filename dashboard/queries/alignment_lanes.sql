-- Time average over a window of the lanes that have at least one request in flight, and how many lanes sent any.
WITH sent AS (
    SELECT
        lane,
        greatest(dispatched_ns, $start_ns) AS start_ns,
        least(coalesce(end_ns, CASE WHEN status = 'in_flight' THEN $end_ns END), $end_ns) AS end_ns
    FROM {run.requests}
    WHERE lane IS NOT NULL AND dispatched_ns < $end_ns
),
ordered AS (
    SELECT
        *,
        max(end_ns) OVER (PARTITION BY lane ORDER BY start_ns, end_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS until_ns
    FROM sent
    WHERE end_ns > start_ns
)
SELECT
    count(DISTINCT lane) AS lanes,
    coalesce(sum(greatest(end_ns - greatest(start_ns, coalesce(until_ns, start_ns)), 0)), 0) / ($end_ns - $start_ns) AS busy_lanes
FROM ordered
