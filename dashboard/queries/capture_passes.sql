-- First start to last end of a pass.
SELECT min(start_ns) AS start_ns, max(end_ns) AS end_ns
FROM {run.passes}
