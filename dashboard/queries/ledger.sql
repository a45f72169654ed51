-- Requests by phase of dispatch and status; turns that were never sent have no phase.
SELECT phase, status, count(*) AS requests
FROM {run.requests}
GROUP BY phase, status
ORDER BY phase, status
