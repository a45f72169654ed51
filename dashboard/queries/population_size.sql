-- How many requests a population holds, how many of them succeeded, and their tokens.
SELECT
    count(*) AS attempted,
    count(*) FILTER (status = 'ok') AS ok,
    sum(input_tokens) FILTER (status = 'ok') AS input_tokens,
    sum(output_tokens) FILTER (status = 'ok') AS output_tokens
FROM {run.population}
