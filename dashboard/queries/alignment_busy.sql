-- Time inside passes over a window, of all ranks, and how many ranks had any; idle calls do not count.
SELECT
    count(*) AS passes,
    count(DISTINCT concat(worker_id, '/', dp_rank)) AS ranks,
    sum(least(end_ns, $end_ns) - greatest(start_ns, $start_ns)) AS busy_ns
FROM {run.passes}
WHERE class <> 'idle' AND start_ns < $end_ns AND end_ns > $start_ns
