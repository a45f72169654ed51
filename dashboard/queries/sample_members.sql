-- Numbers of the successful requests of a population.
SELECT request_number AS request
FROM {run.population}
WHERE status = 'ok'
