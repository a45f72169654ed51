-- One sampled figure over the run, at most $bins mean values per series; the series with most samples first.
WITH mine AS (
    SELECT time_ns, coalesce(labels, endpoint, '') AS labels, value
    FROM {run.telemetry}
    WHERE kind || ': ' || name = $series AND time_ns IS NOT NULL
),
bounds AS (
    SELECT min(time_ns) AS first_ns, greatest(max(time_ns) - min(time_ns), 1) AS length_ns FROM mine
),
ranked AS (
    SELECT labels, row_number() OVER (ORDER BY count(*) DESC, labels) AS place FROM mine GROUP BY labels
)
SELECT
    ranked.place,
    mine.labels,
    min(mine.time_ns) AS time_ns,
    avg(mine.value) AS value,
    count(*) AS samples
FROM mine
JOIN ranked ON ranked.labels = mine.labels
CROSS JOIN bounds
WHERE ranked.place <= $most
GROUP BY ranked.place, mine.labels, ((mine.time_ns - bounds.first_ns) * $bins) // (bounds.length_ns + 1)
ORDER BY ranked.place, time_ns
