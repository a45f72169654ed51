-- Token hit ratio by turn of the conversation over the successful requests of a population; late turns share a row.
SELECT
    least(turn_index, $last_turn) AS turn_index,
    count(*) AS requests,
    sum(cached_tokens) AS cached_tokens,
    sum(input_tokens) AS prompt_tokens,
    sum(cached_tokens) / nullif(sum(input_tokens), 0) AS hit_ratio,
    sum(cached_tokens) / nullif(sum((input_tokens - 1) // $block_size * $block_size), 0) AS reusable_hit_ratio
FROM {run.population}
WHERE status = 'ok' AND cached_tokens IS NOT NULL AND turn_index IS NOT NULL
GROUP BY 1
ORDER BY 1
