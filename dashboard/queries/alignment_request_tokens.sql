-- Tokens that passes must have computed for the requests of a whole recording: prompts less what was reused, and outputs after the first
-- token, which the prefill gives. A request that did not succeed may have got anywhere: `open_*` is what it can have taken at most.
-- After a preemption the last token that was sampled is computed together with the prompt, and in no decode.
SELECT
    count(*) FILTER (status = 'ok') AS ok,
    count(*) FILTER (status = 'ok' AND (input_tokens IS NULL OR cached_tokens IS NULL)) AS prompts_unknown,
    count(*) FILTER (status = 'ok' AND output_tokens IS NULL) AS outputs_unknown,
    count(*) FILTER (status <> 'ok' AND input_tokens IS NULL) AS open_unknown,
    coalesce(sum(input_tokens - cached_tokens + coalesce(recomputed_tokens, 0)) FILTER (status = 'ok'), 0) AS new_tokens,
    coalesce(sum(greatest(output_tokens - 1, 0)) FILTER (status = 'ok'), 0) AS decode_tokens,
    coalesce(sum(input_tokens - coalesce(cached_tokens, 0) + coalesce(recomputed_tokens, 0)) FILTER (status <> 'ok'), 0) AS open_new_tokens,
    coalesce(sum(greatest(coalesce(output_tokens, 0), coalesce(requested_output_tokens, 0))) FILTER (status <> 'ok'), 0) AS open_decode_tokens,
    coalesce(sum(preemptions), 0) AS preemptions
FROM {run.requests}
