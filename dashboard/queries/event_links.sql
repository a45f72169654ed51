-- How the blocks of cache events were joined with the pass and the request behind them, and what stays unidentified and why.
WITH moved AS (
    SELECT CASE WHEN restored THEN 'restore' WHEN kind = 'readmit' THEN 'hit' ELSE kind END AS kind, identified, rule AS joined_by
    FROM {run.block_moves}
    WHERE kind <> 'clear'
)
SELECT kind, identified, joined_by, count(*) AS blocks, count(*) / sum(count(*)) OVER (PARTITION BY kind) AS share
FROM moved
GROUP BY kind, identified, joined_by
ORDER BY kind, identified DESC, blocks DESC, joined_by
