-- What the client received of one request, in order. Tokens so far are unknown from the first chunk on whose tokens nobody counted.
SELECT
    ordinal, time_ns, coalesce(time_ns - $dispatched_ns, after_ns) AS since_dispatch_ns, tokens, visible,
    CASE WHEN count(*) FILTER (tokens IS NULL) OVER so_far = 0 THEN sum(tokens) OVER so_far END AS tokens_so_far
FROM {run.chunks}
WHERE request_id = $request_id AND (time_ns IS NULL OR time_ns >= $start_ns AND time_ns <= $end_ns)
WINDOW so_far AS (ORDER BY coalesce(time_ns, after_ns), ordinal)
ORDER BY coalesce(time_ns, after_ns), ordinal
