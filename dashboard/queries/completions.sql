-- Successes of any phase whose response closed inside a time window, by lane.
SELECT
    coalesce(lane, -1) AS lane,
    count(*) AS ok,
    sum(input_tokens) AS input_tokens,
    sum(output_tokens) AS output_tokens,
    count(output_tokens) AS output_recorded,
    count(input_tokens + output_tokens) AS tokens_recorded
FROM {run.requests}
WHERE status = 'ok' AND end_ns >= $start_ns AND end_ns < $end_ns
    AND ($role = 'any' OR (agent_depth = 0) = ($role = 'root'))
GROUP BY ALL
ORDER BY ALL
