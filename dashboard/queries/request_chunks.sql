-- What the client received of one request, in order.
SELECT ordinal, time_ns, tokens, visible, sum(tokens) OVER (ORDER BY time_ns, ordinal) AS tokens_so_far
FROM {run.chunks}
WHERE request_id = $request_id AND time_ns >= $start_ns AND time_ns <= $end_ns
ORDER BY time_ns, ordinal
