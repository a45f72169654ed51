-- Who else was in the passes of a request: how many passes they shared, what was prefilled and what decoded in them.
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
    coalesce(sum(scheduled_tokens) FILTER (computed_before < input_tokens), 0) AS new_tokens,
    count(*) FILTER (computed_before < input_tokens) AS prefill_passes,
    count(*) FILTER (computed_before >= input_tokens) AS decode_passes,
    min(start_ns) AS first_start_ns
FROM shared s
LEFT JOIN {run.requests} r ON r.request_id = s.request_id
WHERE s.request_id <> $request_id
GROUP BY r.turn, s.request_id
ORDER BY passes DESC, first_start_ns, r.turn
