-- The passes of a run inside one cell of the geometry map, and who was in them: requests with more than one token say how many.
WITH held AS (
    SELECT *
    FROM {run.passes_in}
    WHERE class = $class
        AND ($decode_requests IS NULL OR num_decode_requests = $decode_requests)
        AND ($new_cell IS NULL OR CASE WHEN sum_prefill_tokens > 0 THEN floor($per_octave * log2(sum_prefill_tokens)) ELSE -1 END = $new_cell)
        AND ($prefill_kv_cell IS NULL OR CASE WHEN sum_prefill_kv_tokens > 0 THEN floor($per_octave * log2(sum_prefill_kv_tokens)) ELSE -1 END = $prefill_kv_cell)
        AND ($decode_kv_cell IS NULL OR CASE WHEN sum_decode_kv_tokens > 0 THEN floor($per_octave * log2(sum_decode_kv_tokens)) ELSE -1 END = $decode_kv_cell)
    ORDER BY start_ns, pass_index
    LIMIT $top
),
members AS (
    SELECT pass_index, unnest(range(len(members))) AS place, unnest(members, recursive := true)
    FROM held
),
who AS (
    SELECT
        pass_index,
        list(coalesce(r.turn, '=' || m.request_id) ORDER BY place) AS turns,
        string_agg(
            coalesce(r.turn, '=' || m.request_id) || CASE WHEN scheduled_tokens > 1 THEN ' (' || scheduled_tokens || ')' ELSE '' END,
            ', ' ORDER BY place
        ) AS who
    FROM members m
    LEFT JOIN {run.requests} r ON r.request_id = m.request_id
    GROUP BY pass_index
)
SELECT
    h.pass_index, start_ns, duration_ns, num_prefill_requests, sum_prefill_tokens, sum_prefill_kv_tokens,
    num_decode_requests, sum_decode_kv_tokens, num_waiting, resolution, who, turns
FROM held h
LEFT JOIN who w ON w.pass_index = h.pass_index
ORDER BY start_ns, h.pass_index
