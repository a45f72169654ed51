-- The workers and ranks that took passes, as one name each.
SELECT concat_ws('/', worker_id, dp_rank) AS rank
FROM {run.passes}
GROUP BY worker_id, dp_rank
ORDER BY worker_id, dp_rank
