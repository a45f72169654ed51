-- Cache events of the whole capture by kind and reason; age is the time since the block was last used.
SELECT {part.event_kind} AS kind, reason, count(*) AS events, sum(num_blocks) AS blocks, quantile_cont(age_ns, 0.5) AS p50_age_ns
FROM {run.kv_events}
GROUP BY ALL
ORDER BY ALL
