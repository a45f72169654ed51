-- Time average of the requests between dispatch and end over a window. One that was in flight when the recording ended
-- stays to the close; one that ended at a time nobody recorded is left out and counted, and where that is most of them
-- there is no average.
WITH sent AS (
    SELECT dispatched_ns, coalesce(end_ns, CASE WHEN status = 'in_flight' THEN $end_ns END) AS end_ns
    FROM {run.requests}
    WHERE dispatched_ns < $end_ns
),
counts AS (
    SELECT
        count(*) FILTER (end_ns > $start_ns) AS requests,
        count(*) FILTER (end_ns IS NULL) AS without_end,
        sum(least(end_ns, $end_ns) - greatest(dispatched_ns, $start_ns)) FILTER (end_ns > $start_ns) AS sum_ns
    FROM sent
)
SELECT
    requests, without_end,
    CASE WHEN without_end <= requests THEN sum_ns / ($end_ns - $start_ns) END AS in_flight
FROM counts
