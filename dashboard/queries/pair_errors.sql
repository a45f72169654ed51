-- How far a metric of shared source-turns is off, by input and output length of the measured request. A turn whose measured value is
-- zero has no ratio of its own and counts in the means.
WITH
{part.pair_lengths}
SELECT
    input_bucket, output_bucket, count(*) AS turns,
    median((replay - measured) / measured) FILTER (measured > 0) AS median_gap,
    sum(replay) / nullif(sum(measured), 0) - 1 AS gap_of_means,
    avg(measured)::DOUBLE AS measured, avg(replay)::DOUBLE AS replay
FROM pairs
GROUP BY input_bucket, output_bucket
ORDER BY input_bucket, output_bucket
