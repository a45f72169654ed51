-- Time average of the requests between dispatch and end over a window; a request without an end stays to its close.
SELECT
    count(*) AS requests,
    sum(least(coalesce(end_ns, $end_ns), $end_ns) - greatest(dispatched_ns, $start_ns)) / ($end_ns - $start_ns) AS in_flight
FROM {run.requests}
WHERE dispatched_ns < $end_ns AND coalesce(end_ns, $end_ns) > $start_ns
