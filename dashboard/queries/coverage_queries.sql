-- Timing queries of a replay and the time that rests on them, by class and resolution.
SELECT class, resolution, count(*) AS geometries, sum("count") AS queries, sum(modelled_ns) AS modelled_ns
FROM {run.coverage}
GROUP BY class, resolution
ORDER BY class, resolution
