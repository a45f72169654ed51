-- The shared source-turns of one cell of input and output length, the largest difference first.
WITH
{part.pair_lengths}
SELECT
    turn, measured, replay, replay - measured AS difference,
    CASE WHEN measured > 0 THEN (replay - measured) / measured END AS gap,
    input_tokens, output_tokens, replay_output_tokens
FROM pairs
WHERE input_bucket = $input_bucket AND output_bucket = $output_bucket
ORDER BY abs(replay - measured) DESC, turn
LIMIT $most
