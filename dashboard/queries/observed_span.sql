-- Earliest dispatch to latest visible end over the successful requests of a population.
SELECT min(dispatched_ns) AS start_ns, max(last_visible_ns) AS end_ns
FROM {run.population}
WHERE status = 'ok'
