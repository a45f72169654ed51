-- One metric of the source-turns that two runs share, with the buckets of the measured lengths: how many edges lie at or below them.
pairs AS (
    SELECT
        m.turn, m.input_tokens, m.output_tokens, r.output_tokens AS replay_output_tokens,
        len(list_filter($input_edges, lambda edge: edge <= m.input_tokens)) AS input_bucket,
        len(list_filter($output_edges, lambda edge: edge <= m.output_tokens)) AS output_bucket,
        m.{metric.column} AS measured, r.{metric.column} AS replay
    FROM {measured.pairs} p
    JOIN {measured.requests} m ON m.request_number = p.request_number
    JOIN {replay.requests} r ON r.request_number = p.other_number
    WHERE m.{metric.column} IS NOT NULL AND r.{metric.column} IS NOT NULL AND m.input_tokens IS NOT NULL AND m.output_tokens IS NOT NULL
        AND ($role = 'any' OR (m.agent_depth = 0) = ($role = 'root'))
)
