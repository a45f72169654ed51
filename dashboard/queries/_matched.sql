-- Requests of one side whose source-turn is unique on both sides and succeeded on both, and those of the other.
-- Keys are compared with NULLs equal; a tolerance below 0 asks for no equality of lengths.
WITH both_sides AS (
    SELECT true AS here, source_trace_id, source_kind, source_outer_index, source_inner_index, conversation_id, turn_index, request_id, phase, status, input_tokens, output_tokens
    FROM {this}
    UNION ALL
    SELECT false, source_trace_id, source_kind, source_outer_index, source_inner_index, conversation_id, turn_index, request_id, phase, status, input_tokens, output_tokens
    FROM {other}
)
SELECT any_value(request_id) FILTER (here) AS request_id, any_value(request_id) FILTER (NOT here) AS other_id
FROM both_sides
WHERE list_contains($phases, phase)
GROUP BY source_trace_id, source_kind, source_outer_index, source_inner_index, conversation_id, turn_index
HAVING count(*) FILTER (here) = 1 AND count(*) FILTER (NOT here) = 1 AND bool_and(status = 'ok')
    AND ($tolerance < 0 OR (max(input_tokens) - min(input_tokens) <= $tolerance AND max(output_tokens) - min(output_tokens) <= $tolerance))
