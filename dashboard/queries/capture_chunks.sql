-- Chunks that show something, and those whose tokens somebody counted.
SELECT count(*) AS chunks, count(tokens) AS counted
FROM {run.chunks}
WHERE visible IS NOT false
