-- The requests of a run that are one source-turn: one row, or more where several traces use the same name.
SELECT * FROM (
    SELECT {part.turn}, * FROM {run.requests}
    WHERE CASE WHEN $conversation IS NULL THEN request_id = $request_id ELSE conversation_id = $conversation END
)
WHERE turn = $turn
ORDER BY source_trace_id, source_kind, source_outer_index, source_inner_index
