-- Passes whose batch a teacher-forced replay composed differently than the recording.
SELECT "check", pass_index, cause, explanation, len(measured_members) AS measured_batch, len(replay_members) AS replay_batch,
    len(measured_waiting) AS measured_queue, len(replay_waiting) AS replay_queue, measured_free_blocks, replay_free_blocks
FROM {run.divergences}
WHERE "check" = $check
ORDER BY pass_index
