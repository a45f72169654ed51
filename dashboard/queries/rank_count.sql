-- How many ranks took passes.
SELECT count(*) AS ranks
FROM (SELECT DISTINCT worker_id, dp_rank FROM {run.passes})
