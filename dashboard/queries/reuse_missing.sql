-- Source-turns that reused less on one side, largest difference first, with what had become of the blocks that only the other side
-- reused when the request was admitted. The first of these blocks decides: reuse ends there, whatever is held behind it.
WITH turns AS (
    SELECT
        m.source_trace_id, m.source_kind, m.source_outer_index, m.source_inner_index, m.conversation_id, m.turn_index,
        m.cached_tokens AS measured_cached_tokens, r.cached_tokens AS replay_cached_tokens,
        m.preemptions AS measured_preemptions, r.preemptions AS replay_preemptions,
        m.ttft_ns AS measured_ttft_ns, r.ttft_ns AS replay_ttft_ns,
        CASE WHEN $less = 'measured' THEN m.request_id ELSE r.request_id END AS request_id,
        CASE WHEN $less = 'measured' THEN r.request_id ELSE m.request_id END AS other_id,
        CASE WHEN $less = 'measured' THEN coalesce(m.first_admit_ns, m.dispatched_ns) ELSE coalesce(r.first_admit_ns, r.dispatched_ns) END AS admit_ns,
        CASE WHEN $less = 'measured' THEN coalesce(r.first_admit_ns, r.dispatched_ns) ELSE coalesce(m.first_admit_ns, m.dispatched_ns) END AS other_admit_ns,
        CASE WHEN $less = 'measured' THEN m.dp_rank ELSE r.dp_rank END AS dp_rank,
        CASE WHEN $less = 'measured' THEN m.input_tokens ELSE r.input_tokens END AS input_tokens,
        least(m.cached_tokens, r.cached_tokens) AS less_tokens,
        greatest(m.cached_tokens, r.cached_tokens) AS more_tokens
    {part.shared_turns}
        AND CASE WHEN $less = 'measured' THEN m.cached_tokens < r.cached_tokens ELSE r.cached_tokens < m.cached_tokens END
    ORDER BY more_tokens - less_tokens DESC, m.conversation_id, m.turn_index
    LIMIT $turns
),
before AS (  -- the turn before of the conversation
    SELECT t.request_id, any_value(p.request_id) AS before_id
    FROM turns t
    JOIN {less.requests} p
        ON p.conversation_id = t.conversation_id AND p.turn_index = t.turn_index - 1
        AND p.source_trace_id IS NOT DISTINCT FROM t.source_trace_id
    GROUP BY t.request_id
    HAVING count(*) = 1
),
missing AS (
    SELECT
        t.request_id, t.admit_ns, t.dp_rank, t.block_index, k.hash, p.hash AS hash_before,
        t.input_tokens < $less_block OR t.request_id IN (SELECT request_id FROM {less.known_blocks}) AS named
    FROM (SELECT *, unnest(range(less_tokens // $less_block, (more_tokens + $less_block - 1) // $less_block)) AS block_index FROM turns) t
    LEFT JOIN {less.known_blocks} k ON k.request_id = t.request_id AND k.block_index = t.block_index AND k.of_prompt
    LEFT JOIN before b ON b.request_id = t.request_id
    LEFT JOIN {less.known_blocks} p ON p.request_id = b.before_id AND p.block_index = t.block_index
),
admitted AS (  -- the place of an admission among the events: what the request reused comes first, then what it evicted and stored
    SELECT request_id, min(move) AS move
    FROM {less.block_moves}
    WHERE request_id IN (SELECT request_id FROM turns)
    GROUP BY request_id
),
seen AS (
    SELECT
        x.request_id, x.block_index, x.admit_ns, x.named, x.hash, x.hash_before, m.kind, m.move, m.time_ns, m.request_id AS by_request, m.rule,
        CASE WHEN a.move IS NULL THEN m.time_ns < x.admit_ns ELSE m.move < a.move END AS earlier,
        coalesce(m.dp_rank = x.dp_rank, true) AS here
    FROM missing x
    LEFT JOIN admitted a ON a.request_id = x.request_id
    LEFT JOIN {less.block_moves} m ON m.hash = x.hash AND m.kind IN ('store', 'evict')
),
fates AS (
    SELECT
        request_id, block_index, any_value(admit_ns) AS admit_ns, any_value(named) AS named, any_value(hash) AS hash, any_value(hash_before) AS hash_before,
        arg_max_null(kind, move) FILTER (earlier AND here) AS last_kind,
        max(move) FILTER (earlier AND here) AS last_move,
        arg_max_null(time_ns, move) FILTER (earlier AND here) AS last_ns,
        arg_max_null(by_request, move) FILTER (earlier AND here) AS last_by,
        arg_max_null(rule, move) FILTER (earlier AND here) AS last_rule,
        count(*) FILTER (earlier AND NOT here AND kind = 'store') AS elsewhere,
        min(time_ns) FILTER (NOT earlier AND here AND kind = 'store') AS later_ns,
        arg_min_null(by_request, move) FILTER (NOT earlier AND here AND kind = 'store') AS later_by
    FROM seen
    GROUP BY request_id, block_index
),
told AS (
    SELECT
        f.*,
        CASE
            WHEN NOT named THEN 'unknown'
            WHEN hash IS NULL THEN 'no_block'
            WHEN last_kind = 'evict' THEN 'evicted'
            WHEN last_kind = 'store' AND EXISTS (SELECT 1 FROM {less.block_moves} c WHERE c.kind = 'clear' AND c.move > f.last_move AND c.time_ns <= f.admit_ns) THEN 'cleared'
            WHEN last_kind = 'store' THEN 'held'
            WHEN elsewhere > 0 THEN 'elsewhere'
            WHEN hash_before <> hash THEN 'diverged'
            ELSE 'not_stored'
        END AS fate
    FROM fates f
),
summed AS (
    SELECT
        request_id,
        count(*) AS missing_blocks,
        count(*) FILTER (fate = 'evicted') AS evicted_blocks,
        count(*) FILTER (fate IN ('not_stored', 'diverged')) AS unstored_blocks,
        count(*) FILTER (fate = 'held') AS held_blocks
    FROM told
    GROUP BY request_id
),
decides AS (
    SELECT
        request_id, block_index AS first_block, fate AS reason,
        CASE fate WHEN 'evicted' THEN last_by WHEN 'not_stored' THEN later_by END AS by_request,
        CASE fate WHEN 'evicted' THEN last_rule END AS by_rule,
        CASE fate WHEN 'evicted' THEN admit_ns - last_ns END AS evicted_before_ns,
        CASE fate WHEN 'not_stored' THEN later_ns - admit_ns END AS stored_after_ns
    FROM told
    QUALIFY row_number() OVER (PARTITION BY request_id ORDER BY block_index) = 1
),
origins AS (  -- who had stored the first of these blocks on the other side
    SELECT t.request_id, arg_max_null(m.request_id, m.move) AS other_storer
    FROM turns t
    JOIN {more.known_blocks} k ON k.request_id = t.other_id AND k.block_index = t.less_tokens // $more_block AND k.of_prompt
    JOIN {more.block_moves} m ON m.hash = k.hash AND m.kind = 'store' AND m.time_ns <= t.other_admit_ns
    GROUP BY t.request_id
),
origin_here AS (  -- and what that source-turn was on this side
    SELECT
        o.request_id, any_value(s.conversation_id || '/' || s.turn_index) AS origin,
        CASE
            WHEN min(l.dispatched_ns) IS NULL THEN 'never sent'
            WHEN min(l.dispatched_ns) > any_value(t.admit_ns) THEN 'sent later'
            WHEN min(coalesce(l.released_ns, l.end_ns)) <= any_value(t.admit_ns) THEN 'ended'
            ELSE 'running or waiting'
        END AS origin_state
    FROM origins o
    JOIN turns t ON t.request_id = o.request_id
    JOIN {more.requests} s ON s.request_id = o.other_storer
    LEFT JOIN {less.requests} l
        ON l.conversation_id IS NOT DISTINCT FROM s.conversation_id AND l.turn_index IS NOT DISTINCT FROM s.turn_index
        AND l.source_trace_id IS NOT DISTINCT FROM s.source_trace_id AND l.source_kind IS NOT DISTINCT FROM s.source_kind
        AND l.source_outer_index IS NOT DISTINCT FROM s.source_outer_index AND l.source_inner_index IS NOT DISTINCT FROM s.source_inner_index
    GROUP BY o.request_id
),
names AS (
    SELECT request_id, {part.turn}
    FROM {less.requests}
)
SELECT
    own.turn, t.conversation_id, t.turn_index, $less AS less_reuse, t.measured_cached_tokens, t.replay_cached_tokens,
    t.replay_cached_tokens - t.measured_cached_tokens AS change_tokens,
    s.missing_blocks, d.first_block, d.reason, coalesce(b.turn, '=' || d.by_request) AS by_turn, d.by_rule, d.evicted_before_ns, d.stored_after_ns,
    d.by_request = t.request_id AS by_itself,
    s.evicted_blocks, s.unstored_blocks, s.held_blocks,
    CASE WHEN d.reason <> 'evicted' THEN o.origin END AS origin, CASE WHEN d.reason <> 'evicted' THEN o.origin_state END AS origin_state,
    t.measured_preemptions, t.replay_preemptions, t.measured_ttft_ns, t.replay_ttft_ns
FROM turns t
JOIN names own ON own.request_id = t.request_id
LEFT JOIN summed s ON s.request_id = t.request_id
LEFT JOIN decides d ON d.request_id = t.request_id
LEFT JOIN names b ON b.request_id = d.by_request
LEFT JOIN origin_here o ON o.request_id = t.request_id
ORDER BY abs(change_tokens) DESC, t.conversation_id, t.turn_index
