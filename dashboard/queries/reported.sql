-- What the tool itself said of the run, in the order in which a reader looks for it: its summary first.
SELECT scope, name, labels, unit, statistic, value, n, metric, definition, source, slice_start_ns, slice_end_ns
FROM {run.reported}
ORDER BY list_position(['run', 'warmup', 'repeats', 'slice', 'server', 'gpu'], scope), slice_start_ns, name, labels, statistic
