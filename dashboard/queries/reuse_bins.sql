-- Source-turns that succeeded on both sides in cells of (measured, replay) reused tokens, at most 60 along each side.
WITH turns AS (
    SELECT m.cached_tokens AS measured_tokens, r.cached_tokens AS replay_tokens
    {part.shared_turns}
),
cell AS (
    SELECT greatest(1, ceil(max(greatest(measured_tokens, replay_tokens)) / 60))::BIGINT AS width
    FROM turns
)
SELECT
    measured_tokens // width * width AS measured_cell,
    replay_tokens // width * width AS replay_cell,
    count(*) AS turns,
    avg(measured_tokens) AS measured_tokens,
    avg(replay_tokens) AS replay_tokens,
    any_value(width) AS width
FROM turns, cell
GROUP BY ALL
ORDER BY measured_cell, replay_cell
