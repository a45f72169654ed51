-- Who else was in the passes of a request: how many passes they shared, what was prefilled and what decoded in them. Of one that the
-- client's record does not have, nobody knows which was which.
WITH shared AS (
    SELECT start_ns, unnest(members, recursive := true)
    FROM {run.passes}
    WHERE start_ns >= $start_ns AND start_ns <= $end_ns
        AND list_contains(list_transform(members, lambda one: one.request_id), $request_id)
)
SELECT
    coalesce(r.turn, '=' || s.request_id) AS turn,
    s.request_id,
    count(*) AS passes,
    sum(CASE WHEN input_tokens IS NOT NULL THEN CASE WHEN computed_before < input_tokens THEN scheduled_tokens ELSE 0 END END) AS new_tokens,
    sum((computed_before < input_tokens)::BIGINT) AS prefill_passes,
    sum((computed_before >= input_tokens)::BIGINT) AS decode_passes,
    min(start_ns) AS first_start_ns
FROM shared s
LEFT JOIN {run.requests} r ON r.request_id = s.request_id
WHERE s.request_id <> $request_id
GROUP BY r.turn, s.request_id
ORDER BY passes DESC, first_start_ns, r.turn
