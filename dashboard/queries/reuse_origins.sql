-- Who had stored a block on the side that reused it, and what that source-turn was on the other side when a request there missed it.
WITH asked AS (
    SELECT unnest($requests) AS request_id, unnest($others) AS other_id, unnest($blocks) AS block_index
),
origins AS (
    SELECT a.request_id, arg_max(m.request_id, m.move) AS storer
    FROM asked a
    JOIN {more.requests} o ON o.request_id = a.other_id
    JOIN {more.known_blocks} k ON k.request_id = a.other_id AND k.block_index = a.block_index AND k.of_prompt
    JOIN {more.block_moves} m ON m.hash = k.hash AND m.kind = 'store' AND m.time_ns <= coalesce(o.first_admit_ns, o.dispatched_ns)
    GROUP BY a.request_id
)
SELECT
    o.request_id, any_value(s.turn) AS origin,
    CASE
        WHEN min(l.dispatched_ns) IS NULL THEN 'never sent'
        WHEN min(l.dispatched_ns) > any_value(coalesce(t.first_admit_ns, t.dispatched_ns)) THEN 'sent later'
        WHEN min(coalesce(l.released_ns, l.end_ns)) <= any_value(coalesce(t.first_admit_ns, t.dispatched_ns)) THEN 'ended'
        ELSE 'running or waiting'
    END AS origin_state
FROM origins o
JOIN {less.requests} t ON t.request_id = o.request_id
JOIN {more.requests} s ON s.request_id = o.storer
LEFT JOIN {less.requests} l
    ON l.conversation_id IS NOT DISTINCT FROM s.conversation_id AND l.turn_index IS NOT DISTINCT FROM s.turn_index
    AND l.source_trace_id IS NOT DISTINCT FROM s.source_trace_id AND l.source_kind IS NOT DISTINCT FROM s.source_kind
    AND l.source_outer_index IS NOT DISTINCT FROM s.source_outer_index AND l.source_inner_index IS NOT DISTINCT FROM s.source_inner_index
GROUP BY o.request_id
ORDER BY o.request_id
