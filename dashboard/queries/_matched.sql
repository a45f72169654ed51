-- Requests of one side whose source-turn is unique on both sides and succeeded on both.
-- Keys are compared with NULLs equal; a tolerance below 0 asks for no equality of lengths.
WITH this_side AS (
    SELECT *, count(*) OVER (PARTITION BY source_trace_id, source_kind, source_outer_index, source_inner_index, conversation_id, turn_index) AS copies
    FROM {this}
    WHERE list_contains($phases, phase)
),
other_side AS (
    SELECT *, count(*) OVER (PARTITION BY source_trace_id, source_kind, source_outer_index, source_inner_index, conversation_id, turn_index) AS copies
    FROM {other}
    WHERE list_contains($phases, phase)
)
SELECT a.request_id
FROM this_side a
JOIN other_side b
    ON a.conversation_id IS NOT DISTINCT FROM b.conversation_id
    AND a.turn_index IS NOT DISTINCT FROM b.turn_index
    AND a.source_trace_id IS NOT DISTINCT FROM b.source_trace_id
    AND a.source_kind IS NOT DISTINCT FROM b.source_kind
    AND a.source_outer_index IS NOT DISTINCT FROM b.source_outer_index
    AND a.source_inner_index IS NOT DISTINCT FROM b.source_inner_index
WHERE a.copies = 1 AND b.copies = 1 AND a.status = 'ok' AND b.status = 'ok'
    AND ($tolerance < 0 OR (abs(a.input_tokens - b.input_tokens) <= $tolerance AND abs(a.output_tokens - b.output_tokens) <= $tolerance))
