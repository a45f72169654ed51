-- First dispatch to last end.
SELECT min(dispatched_ns) AS start_ns, max(greatest(coalesce(end_ns, dispatched_ns), dispatched_ns)) AS end_ns
FROM {run.requests}
