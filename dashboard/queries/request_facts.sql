-- The requests of a run that are one source-turn: one row, or more where several traces use the same name.
SELECT *
FROM {run.requests}
WHERE turn = $turn
ORDER BY source_trace_id, source_kind, source_outer_index, source_inner_index
