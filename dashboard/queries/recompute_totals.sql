-- Blocks that were computed or reused in the whole recording, by what they are to the run, in blocks and tokens.
SELECT
    {part.block_use} AS use,
    count(*) AS blocks,
    count(*) * $block_size AS tokens,
    count(*) / sum(count(*)) OVER (PARTITION BY kind = 'store' AND NOT restored) AS share
FROM {run.block_moves}
WHERE kind IN ('store', 'hit', 'readmit')
GROUP BY kind = 'store' AND NOT restored, use
ORDER BY kind = 'store' AND NOT restored DESC, use
