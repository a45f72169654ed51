-- How many successful requests of a population an importer noticed something about, by what it was.
SELECT flag, count(*) AS requests
FROM (
    SELECT unnest(string_split(flags, '; ')) AS flag
    FROM {run.population}
    WHERE status = 'ok' AND flags IS NOT NULL
)
GROUP BY flag
ORDER BY flag
