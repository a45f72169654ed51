-- Admissions of one request: the first, and one after each preemption.
SELECT ordinal, time_ns, cached_tokens, hit_blocks, restored_blocks, is_readmission, waiting_ahead
FROM {run.admissions}
WHERE request_id = $request_id AND time_ns >= $start_ns AND time_ns <= $end_ns
ORDER BY ordinal
