-- Single passes of a time range with their composition; of one worker and rank, where it is named.
SELECT
    pass_index, worker_id, dp_rank, class, phase, start_ns, end_ns, duration_ns, num_prefill_requests, sum_prefill_tokens, sum_prefill_kv_tokens,
    num_decode_requests, sum_decode_kv_tokens, num_running, num_waiting, num_preempted, kv_blocks_used, resolution
FROM {run.passes}
WHERE start_ns >= $start_ns AND start_ns < $end_ns AND class <> 'idle'
    AND ($rank IS NULL OR $rank = concat_ws('/', worker_id, dp_rank))
ORDER BY start_ns, pass_index
