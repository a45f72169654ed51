-- The successful requests of a population with the largest value of a metric.
SELECT
    request_id, conversation_id, turn_index, lane, dispatched_ns, input_tokens, cached_tokens, output_tokens, preemptions,
    {metric.column} AS value
FROM {run.population}
WHERE status = 'ok' AND {metric.column} IS NOT NULL
ORDER BY value DESC, request_id
LIMIT $top
