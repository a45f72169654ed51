-- Source-turns that are unique on both of two runs and succeeded on both: the numbers of their requests, and how far their lengths
-- are apart. Keys are compared with NULLs equal.
WITH both_sides AS (
    SELECT true AS first, source_trace_id, source_kind, source_outer_index, source_inner_index, conversation_id, turn_index, request_number, phase, status, input_tokens, output_tokens
    FROM {first}
    UNION ALL
    SELECT false, source_trace_id, source_kind, source_outer_index, source_inner_index, conversation_id, turn_index, request_number, phase, status, input_tokens, output_tokens
    FROM {second}
)
SELECT
    any_value(request_number) FILTER (first) AS first_number,
    any_value(request_number) FILTER (NOT first) AS second_number,
    max(input_tokens) - min(input_tokens) AS input_apart,
    max(output_tokens) - min(output_tokens) AS output_apart
FROM both_sides
WHERE list_contains($phases, phase)
GROUP BY source_trace_id, source_kind, source_outer_index, source_inner_index, conversation_id, turn_index
HAVING count(*) FILTER (first) = 1 AND count(*) FILTER (NOT first) = 1 AND bool_and(status = 'ok')
