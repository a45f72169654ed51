-- Requests of some phases that are no plain successes, the earliest dispatch first: what became of each, and where in the trace it
-- stood.
SELECT * FROM (
    SELECT
        turn, {part.outcome} AS outcome, tool_status, error_type, coalesce(phase, 'unknown') AS phase, agent_depth, lane, dispatched_ns,
        coalesce(end_ns - dispatched_ns, end_after_ns) AS took_ns, input_tokens, requested_output_tokens, output_tokens, request_id
    FROM {run.requests}
    WHERE status <> 'never_issued' AND ($every OR list_contains($of_phases, phase))
)
WHERE outcome <> 'ok'
ORDER BY dispatched_ns NULLS LAST, request_id
LIMIT $most
