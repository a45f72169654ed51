-- Tokens that came into sight in a window.
SELECT sum(tokens) AS tokens, count(*) FILTER (tokens IS NULL) AS unknown
FROM {run.chunks}
WHERE visible AND time_ns >= $start_ns AND time_ns < $end_ns
