-- Passes and their time by class; shares are of the passes that did work.
SELECT
    class,
    count(*) AS passes,
    sum(duration_ns) AS time_ns,
    count(*) / sum(count(*)) FILTER (class <> 'idle') OVER () AS pass_share,
    sum(duration_ns) / nullif(sum(sum(duration_ns)) FILTER (class <> 'idle') OVER (), 0) AS time_share,
    avg(duration_ns) AS mean_ns,
    quantile_cont(duration_ns, 0.5) AS p50_ns,
    quantile_cont(duration_ns, 0.99) AS p99_ns
FROM {run.passes_in}
GROUP BY class
ORDER BY list_position(['prefill_only', 'decode_only', 'mixed', 'idle'], class)
