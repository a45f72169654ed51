-- Passes of each worker and rank by their worst resolution, with the share of the rank's own time.
SELECT
    worker_id, dp_rank, resolution,
    count(*) AS passes,
    sum(duration_ns) AS time_ns,
    count(*) / sum(count(*)) OVER (PARTITION BY worker_id, dp_rank) AS pass_share,
    sum(duration_ns) / nullif(sum(sum(duration_ns)) OVER (PARTITION BY worker_id, dp_rank), 0) AS time_share
FROM {run.passes_in}
WHERE class <> 'idle' AND resolution IS NOT NULL
GROUP BY worker_id, dp_rank, resolution
ORDER BY worker_id, dp_rank, time_ns DESC, resolution
