-- What became of the requests of a run, by phase of dispatch. `tool_words` is what the tool itself calls the requests of a class.
SELECT
    coalesce(phase, 'unknown') AS phase,
    {part.outcome} AS outcome,
    count(*) AS requests,
    count(*) FILTER (error_type = 'no record') AS without_record,
    string_agg(DISTINCT tool_status, ', ' ORDER BY tool_status) AS tool_words,
    string_agg(DISTINCT error_type, ', ' ORDER BY error_type) FILTER (error_type <> 'no record') AS error_types
FROM {run.requests}
WHERE status <> 'never_issued'
GROUP BY 1, outcome
ORDER BY 1, outcome
