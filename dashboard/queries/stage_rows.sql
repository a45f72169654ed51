-- What the time of each success with visible output went to, for statistics over any population.
SELECT
    s.* EXCLUDE (request_id, first_pass_ns, first_token_ns, last_token_ns),
    r.phase, r.agent_depth, r.lane, r.turn_index, r.input_tokens, r.output_tokens,
    r.dispatch_lag_ns, r.request_path_ns AS path_ns, r.queue_time_ns, r.ttft_ns, r.e2e_ns, r.tpot_ns,
    r.input_tokens - r.cached_tokens AS uncached_tokens, coalesce(r.recomputed_tokens, 0) AS recomputed_tokens,
    s.first_pass_ns - r.first_admit_ns AS first_pass_ns,
    s.first_token_ns - r.first_admit_ns AS pre_ns, s.last_token_ns - s.first_token_ns - s.transfer_ns AS post_ns,
    r.first_visible_ns - s.first_token_ns - s.transfer_ns AS first_lag_ns, r.last_visible_ns - s.last_token_ns AS last_lag_ns
FROM {run.requests} r
JOIN {run.stages} s USING (request_id)
WHERE r.status = 'ok' AND r.ttft_ns IS NOT NULL
ORDER BY member
