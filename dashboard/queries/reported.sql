-- What the tool itself said of the run, in the order in which a reader looks for it: its summary first. Time slices are a question
-- of their own (slice_series).
SELECT scope, name, labels, unit, statistic, value, n, metric, definition, source
FROM {run.reported}
WHERE scope <> 'slice' AND slice_start_ns IS NULL
ORDER BY list_position(['run', 'warmup', 'repeats', 'server', 'gpu'], scope), name, labels, statistic
