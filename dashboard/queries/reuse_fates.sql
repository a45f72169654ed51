-- What had become of blocks that only the other side reused, when requests that missed them were admitted: from block `first` up to but
-- not with block `until` of their prompts. The first of these blocks decides: reuse ends there, whatever is held behind it.
WITH turns AS MATERIALIZED (
    SELECT r.request_id, a.first, a.until, coalesce(r.first_admit_ns, r.dispatched_ns) AS admit_ns, r.worker_id, r.dp_rank, r.input_tokens, r.conversation_id, r.turn_index, r.source_trace_id
    FROM (SELECT unnest($requests) AS request_id, unnest($firsts) AS first, unnest($untils) AS until) a
    JOIN {less.requests} r ON r.request_id = a.request_id
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
        t.request_id, t.admit_ns, t.worker_id, t.dp_rank, t.block_index, k.hash, p.hash AS hash_before,
        t.input_tokens < $block_size OR t.request_id IN (SELECT request_id FROM {less.known_blocks}) AS named
    FROM (SELECT *, unnest(range(first, until)) AS block_index FROM turns) t
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
        x.*, c.* EXCLUDE (hash, worker_id, dp_rank),
        CASE WHEN a.move IS NULL THEN coalesce(c.stored_ns, c.last_used_ns) < x.admit_ns ELSE c.move < a.move END AS earlier,
        CASE WHEN a.move IS NULL THEN c.evicted_ns < x.admit_ns ELSE c.evicted_move < a.move END AS evicted,
        coalesce(c.worker_id = x.worker_id, true) AND coalesce(c.dp_rank = x.dp_rank, true) AS here
    FROM missing x
    LEFT JOIN admitted a ON a.request_id = x.request_id
    LEFT JOIN {less.block_copies} c ON c.hash = x.hash
),
fates AS (
    SELECT
        request_id, block_index, any_value(admit_ns) AS admit_ns, any_value(named) AS named, any_value(hash) AS hash, any_value(hash_before) AS hash_before,
        count(*) FILTER (earlier AND here) AS copies,
        count(*) FILTER (earlier AND NOT here) AS elsewhere,
        coalesce(arg_max_null(evicted, move) FILTER (earlier AND here), false) AS evicted,
        arg_max_null(evicted_ns, move) FILTER (earlier AND here) AS evicted_ns,
        arg_max_null(evicted_by, move) FILTER (earlier AND here) AS evicted_by,
        arg_max_null(evicted_rule, move) FILTER (earlier AND here) AS evicted_rule,
        arg_max_null(cleared_ns, move) FILTER (earlier AND here) AS cleared_ns,
        min(stored_ns) FILTER (NOT earlier AND here) AS later_ns,
        arg_min_null(stored_by, move) FILTER (NOT earlier AND here) AS later_by
    FROM seen
    GROUP BY request_id, block_index
),
told AS MATERIALIZED (
    SELECT
        f.*,
        CASE
            WHEN NOT named THEN 'unknown'
            WHEN hash IS NULL THEN 'no_block'
            WHEN evicted THEN 'evicted'
            WHEN copies > 0 AND cleared_ns <= admit_ns THEN 'cleared'
            WHEN copies > 0 THEN 'held'
            WHEN elsewhere > 0 THEN 'elsewhere'
            WHEN hash_before <> hash THEN 'diverged'
            ELSE 'not_stored'
        END AS fate
    FROM fates f
),
summed AS (
    SELECT
        request_id, count(*) AS missing_blocks,
        count(*) FILTER (fate = 'evicted') AS evicted_blocks,
        count(*) FILTER (fate IN ('not_stored', 'diverged')) AS unstored_blocks,
        count(*) FILTER (fate = 'held') AS held_blocks
    FROM told
    GROUP BY request_id
),
decides AS (
    SELECT
        request_id, block_index AS first_block, fate AS reason,
        CASE fate WHEN 'evicted' THEN evicted_by WHEN 'not_stored' THEN later_by END AS by_request,
        CASE fate WHEN 'evicted' THEN evicted_rule END AS by_rule,
        CASE fate WHEN 'evicted' THEN admit_ns - evicted_ns END AS evicted_before_ns,
        CASE fate WHEN 'not_stored' THEN later_ns - admit_ns END AS stored_after_ns
    FROM told
    QUALIFY row_number() OVER (PARTITION BY request_id ORDER BY block_index) = 1
)
SELECT
    s.request_id, s.missing_blocks, d.first_block, d.reason, coalesce(b.turn, '=' || d.by_request) AS by_turn, d.by_rule,
    d.evicted_before_ns, d.stored_after_ns, d.by_request = s.request_id AS by_itself, s.evicted_blocks, s.unstored_blocks, s.held_blocks
FROM summed s
JOIN decides d ON d.request_id = s.request_id
LEFT JOIN {less.requests} b ON b.request_id = d.by_request
ORDER BY s.request_id
