-- Which source answered the timing queries of a replay, by class and resolution, and the time that rests on it.
SELECT
    source, class, resolution,
    count(*) AS geometries,
    sum("count") AS queries,
    sum("count") / sum(sum("count")) OVER () AS query_share,
    sum(modelled_ns) AS modelled_ns,
    sum(modelled_ns) / nullif(sum(sum(modelled_ns)) OVER (), 0) AS time_share
FROM {run.coverage}
GROUP BY source, class, resolution
ORDER BY modelled_ns DESC, source, class, resolution
