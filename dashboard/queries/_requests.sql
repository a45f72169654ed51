-- Requests of a run with their latencies in nanoseconds; undefined ones are NULL. Block hashes stay in the Parquet file.
-- Where a tool keeps durations and no times, latencies come from the time since dispatch (`*_after_ns`).
-- `request_number` counts them in order of dispatch. `turn` is the name of the source-turn in a link (dashboard.view.turn_key), `again` how often the run sent the same one before.
SELECT
    * EXCLUDE (prompt_block_hashes, output_block_hashes),
    coalesce(first_visible_ns - dispatched_ns, first_visible_after_ns) AS ttft_ns,
    coalesce(first_output_ns - dispatched_ns, first_output_after_ns) AS ttfo_ns,
    first_visible_ns - first_admit_ns AS ttft_admit_ns,
    CASE
        WHEN output_tokens >= 2
        THEN coalesce(last_visible_ns - first_visible_ns, last_visible_after_ns - first_visible_after_ns) / (output_tokens - 1)
    END AS tpot_ns,
    coalesce(last_visible_ns - dispatched_ns, last_visible_after_ns) AS e2e_ns,
    coalesce(end_ns - dispatched_ns, end_after_ns) AS latency_end_ns,
    first_admit_ns - received_ns AS queue_time_ns,
    received_ns - dispatched_ns AS request_path_ns,
    dispatched_ns - scheduled_ns AS dispatch_lag_ns,
    row_number() OVER (ORDER BY dispatched_ns, request_id) - 1 AS request_number,
    {part.turn}
FROM {raw}
ORDER BY dispatched_ns, request_id
