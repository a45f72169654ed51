-- What size, rates, hit ratios and counts of a population are made of, by lane: sums over lanes are the run's numbers.
-- A prompt can reuse whole blocks only, and leaves at least its last token to compute: reusable_tokens.
SELECT
    coalesce(lane, -1) AS lane,
    count(*) AS attempted,
    count(*) FILTER (status = 'ok') AS ok,
    min(dispatched_ns) FILTER (status = 'ok') AS start_ns,
    max(last_visible_ns) FILTER (status = 'ok') AS end_ns,
    sum(input_tokens) FILTER (status = 'ok') AS input_tokens,
    sum(output_tokens) FILTER (status = 'ok') AS output_tokens,
    count(output_tokens) FILTER (status = 'ok') AS output_recorded,
    count(input_tokens + output_tokens) FILTER (status = 'ok') AS tokens_recorded,
    count(cached_tokens) FILTER (status = 'ok') AS reuse_recorded,
    sum(cached_tokens) FILTER (status = 'ok') AS cached_tokens,
    sum(input_tokens) FILTER (status = 'ok' AND cached_tokens IS NOT NULL) AS prompt_tokens,
    sum((input_tokens - 1) // $block_size * $block_size) FILTER (status = 'ok' AND cached_tokens IS NOT NULL) AS reusable_tokens,
    count(preemptions) AS preemptions_recorded,
    sum(preemptions) AS preemptions
FROM {run.population}
GROUP BY lane
ORDER BY lane
