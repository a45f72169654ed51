-- The successful requests of a population with the largest value of a metric, with their place in the trace.
SELECT
    turn, turn_index, agent_depth, lane, dispatched_ns, queue_time_ns, cached_tokens / nullif(input_tokens, 0) AS cached_share,
    input_tokens, cached_tokens, output_tokens, preemptions, conversation_id, request_id,
    {metric.column} AS value
FROM {run.population}
WHERE status = 'ok' AND {metric.column} IS NOT NULL
ORDER BY value DESC, request_id
LIMIT $top
