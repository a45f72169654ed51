-- One metric of the successful requests of a population by a property of the request, sorted inside each bucket.
-- A bucket is the number of edges at or below the property's value.
SELECT
    len(list_filter($edges, lambda edge: edge <= CASE $property
        WHEN 'input_tokens' THEN input_tokens
        WHEN 'output_tokens' THEN output_tokens
        WHEN 'turn_index' THEN turn_index
        WHEN 'cached_share' THEN cached_tokens / nullif(input_tokens, 0)
    END)) AS bucket,
    {metric.column} AS value
FROM {run.population}
WHERE status = 'ok' AND {metric.column} IS NOT NULL AND CASE $property
    WHEN 'input_tokens' THEN input_tokens
    WHEN 'output_tokens' THEN output_tokens
    WHEN 'turn_index' THEN turn_index
    WHEN 'cached_share' THEN cached_tokens
END IS NOT NULL
ORDER BY bucket, value
