-- How far the reuse of source-turns differs, replay less measured, in bins of tokens; equal ones have a bin of their own (width 0).
WITH turns AS (
    SELECT r.cached_tokens - m.cached_tokens AS change
    {part.shared_turns}
),
bin AS (
    SELECT greatest(1, ceil(max(abs(change)) / 15))::BIGINT AS width
    FROM turns
)
SELECT
    CASE WHEN change = 0 THEN 0 ELSE sign(change) * ((abs(change) - 1) // width * width + 1) END::BIGINT AS from_tokens,
    CASE WHEN change = 0 THEN 0 ELSE sign(change) * ((abs(change) - 1) // width + 1) * width END::BIGINT AS to_tokens,
    count(*) AS turns,
    sum(change) AS change_tokens
FROM turns, bin
GROUP BY ALL
ORDER BY from_tokens
