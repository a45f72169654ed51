-- Numbers of the successful requests of a population.
WITH numbered AS (
    {part.numbered}
)
SELECT n.request
FROM {run.population} p
JOIN numbered n ON n.request_id = p.request_id
WHERE p.status = 'ok'
