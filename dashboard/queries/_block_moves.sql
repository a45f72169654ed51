-- Every block that a cache event of a run stored, reused or evicted, in the order in which the scheduler did it, with the pass and the
-- request behind it where they can be told: docs/dashboard.md says the rules. Its time is that of the scheduling, the start of the pass,
-- as producers publish some events only at its end. What only moves in other memory than the pool's is left out; what is loaded from
-- there is a store that computed nothing (`restored`).
WITH seats AS MATERIALIZED (  -- what each member of a pass filled and took, in scheduling order
    SELECT
        pass_index, request_id, seat,
        (before + scheduled) // $block_size - before // $block_size AS filled,
        (before + scheduled + $block_size - 1) // $block_size - (before + $block_size - 1) // $block_size AS taken,
        sum((before + scheduled) // $block_size - before // $block_size) OVER (PARTITION BY pass_index ORDER BY seat) AS filled_to
    FROM (
        SELECT pass_index, seat, member.request_id, member.computed_before AS before, member.scheduled_tokens AS scheduled
        FROM (SELECT pass_index, unnest(members) AS member, unnest(range(len(members))) AS seat FROM {passes})
    )
),
filled AS (
    SELECT pass_index, sum(filled) AS blocks, count(*) FILTER (filled > 0) AS requests, count(*) FILTER (taken > 0) AS takers
    FROM seats
    GROUP BY pass_index
),
events AS MATERIALIZED (  -- with the pass that the event names, else the one that was running
    SELECT
        e.* EXCLUDE (pass_index) REPLACE (CASE kind WHEN 'restore' THEN 'store' ELSE kind END AS kind), kind = 'restore' AS restored,
        coalesce(named.pass_index, p.pass_index) AS pass_index,
        coalesce(named.start_ns, p.start_ns, e.time_ns) AS order_ns, named.pass_index IS NOT NULL AS pass_named
    FROM {kv_events} e
    LEFT JOIN {passes} named ON named.pass_index = e.pass_index
    ASOF LEFT JOIN {passes} started
        ON coalesce(started.worker_id, '') = coalesce(e.worker_id, '') AND coalesce(started.dp_rank, -1) = coalesce(e.dp_rank, -1)
        AND started.start_ns <= e.time_ns
    LEFT JOIN {passes} p ON p.pass_index = started.pass_index AND e.time_ns <= p.end_ns AND e.pass_index IS NULL
    WHERE e.kind IN ('store', 'evict', 'hit', 'readmit', 'clear') AND coalesce(e.tier, 'device') = 'device' OR e.kind = 'restore'
),
names AS (  -- the producer's names of blocks, where their content is known
    SELECT own, any_value(content) AS content
    FROM (SELECT unnest(block_hashes) AS own, unnest(content_hashes) AS content FROM {kv_events} WHERE kind = 'store')
    WHERE own IS NOT NULL AND content IS NOT NULL
    GROUP BY own
),
blocks AS MATERIALIZED (
    SELECT e.* EXCLUDE (own, content), coalesce(e.content, n.content, e.own) AS hash
    FROM (
        SELECT
            event_index, time_ns, order_ns, pass_index, pass_named, worker_id, dp_rank, kind, restored, request_id, num_blocks, reason, age_ns,
            unnest(range(CASE WHEN kind = 'clear' THEN 1 ELSE greatest(num_blocks, len(block_hashes), len(content_hashes)) END)) AS ordinal,
            unnest(block_hashes) AS own, unnest(content_hashes) AS content
        FROM events
    ) e
    LEFT JOIN (SELECT own AS hash, content FROM names) n ON n.hash = e.own AND e.content IS NULL
),
stored AS MATERIALIZED (
    SELECT
        b.* EXCLUDE (request_id), coalesce(b.request_id, m.request_id) AS request_id, coalesce(own.seat, m.seat) AS seat,
        CASE
            WHEN b.hash IS NULL THEN 'no hash'
            WHEN coalesce(b.request_id, m.request_id) IS NULL OR b.pass_index IS NULL THEN NULL
            WHEN NOT b.pass_named THEN 'time'
            WHEN b.request_id IS NOT NULL THEN 'event'
            ELSE 'members'
        END AS rule,
        coalesce(f.requests, 0) AS candidates
    FROM (
        SELECT
            *, row_number() OVER (PARTITION BY pass_index ORDER BY event_index, ordinal) AS place,
            count(*) OVER (PARTITION BY pass_index) AS of_pass
        FROM blocks
        WHERE kind = 'store'
    ) b
    LEFT JOIN filled f ON f.pass_index = b.pass_index
    LEFT JOIN seats own ON own.pass_index = b.pass_index AND own.request_id = b.request_id
    LEFT JOIN seats m
        ON b.request_id IS NULL AND m.pass_index = b.pass_index AND m.filled > 0
        AND ((f.blocks = b.of_pass AND b.place BETWEEN m.filled_to - m.filled + 1 AND m.filled_to) OR (f.requests = 1 AND b.of_pass <= f.blocks))
),
evicted AS MATERIALIZED (  -- between which stores of the pass: whoever allocated there caused it
    SELECT *, row_number() OVER (PARTITION BY pass_index, after_seat, upto_seat ORDER BY event_index, ordinal) AS place
    FROM (
    SELECT
        * EXCLUDE (stored_seat),
        coalesce(max(stored_seat) OVER (PARTITION BY pass_index ORDER BY event_index, ordinal ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW), -1) AS after_seat,
        min(stored_seat) OVER (PARTITION BY pass_index ORDER BY event_index, ordinal ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS upto_seat
    FROM (
        SELECT *, NULL AS stored_seat FROM blocks WHERE kind = 'evict'
        UNION ALL BY NAME
        SELECT event_index, ordinal, pass_index, kind, seat AS stored_seat FROM stored
    )
    QUALIFY kind = 'evict'
    )
),
windows AS (  -- who allocated between two stores, and how much
    SELECT
        w.*, c.request_id, c.seat, c.taken, count(c.seat) OVER own AS candidates, sum(c.taken) OVER own AS taken_by_all,
        sum(c.taken) OVER (PARTITION BY w.pass_index, w.after_seat, w.upto_seat ORDER BY c.seat) AS taken_to
    FROM (
        SELECT pass_index, after_seat, upto_seat, count(*) AS blocks
        FROM evicted
        WHERE request_id IS NULL AND pass_index IS NOT NULL
        GROUP BY ALL
    ) w
    LEFT JOIN seats c ON c.pass_index = w.pass_index AND c.taken > 0 AND c.seat > w.after_seat AND c.seat <= coalesce(w.upto_seat, c.seat)
    WINDOW own AS (PARTITION BY w.pass_index, w.after_seat, w.upto_seat)
),
removed AS (
    SELECT
        e.* EXCLUDE (request_id, after_seat, upto_seat, place),
        coalesce(e.request_id, w.request_id) AS request_id,
        coalesce(own.seat, w.seat, e.upto_seat, 1000000) AS seat,
        CASE
            WHEN e.hash IS NULL THEN 'no hash'
            WHEN e.pass_index IS NULL OR coalesce(e.request_id, w.request_id) IS NULL THEN NULL
            WHEN NOT e.pass_named THEN 'time'
            WHEN e.request_id IS NOT NULL THEN 'event'
            WHEN f.takers = 1 THEN 'only allocation'
            ELSE 'order'
        END AS rule,
        coalesce(f.takers, 0) AS candidates
    FROM evicted e
    LEFT JOIN seats own ON own.pass_index = e.pass_index AND own.request_id = e.request_id
    LEFT JOIN filled f ON f.pass_index = e.pass_index
    LEFT JOIN windows w
        ON e.request_id IS NULL AND w.pass_index = e.pass_index AND w.after_seat = e.after_seat
        AND w.upto_seat IS NOT DISTINCT FROM e.upto_seat
        AND CASE
            WHEN w.candidates = 1 THEN w.blocks <= w.taken
            ELSE w.blocks = w.taken_by_all AND e.place BETWEEN w.taken_to - w.taken + 1 AND w.taken_to
        END
),
reused AS (
    SELECT
        b.* EXCLUDE (request_id), coalesce(b.request_id, a.request_id) AS request_id, s.seat,
        CASE
            WHEN b.hash IS NULL THEN 'no hash'
            WHEN coalesce(b.request_id, a.request_id) IS NULL OR b.pass_index IS NULL THEN NULL
            WHEN NOT b.pass_named THEN 'time'
            WHEN b.request_id IS NOT NULL THEN 'event'
            ELSE 'admission'
        END AS rule,
        coalesce(a.candidates, 0) AS candidates
    FROM blocks b
    LEFT JOIN (
        SELECT pass_index, hit_blocks, CASE WHEN count(*) = 1 THEN any_value(request_id) END AS request_id, count(*) AS candidates
        FROM {admissions}
        GROUP BY pass_index, hit_blocks
    ) a ON b.request_id IS NULL AND a.pass_index = b.pass_index AND a.hit_blocks = b.num_blocks
    LEFT JOIN seats s ON s.pass_index = b.pass_index AND s.request_id = coalesce(b.request_id, a.request_id)
    WHERE b.kind IN ('hit', 'readmit')
    UNION ALL BY NAME
    SELECT  -- a producer that names no hits: the admissions say how many of the first blocks were reused
        -1 AS event_index, a.block AS ordinal, a.time_ns, coalesce(p.start_ns, a.time_ns) AS order_ns, p.pass_index, a.worker_id, a.dp_rank,
        CASE WHEN a.is_readmission THEN 'readmit' ELSE 'hit' END AS kind, a.request_id, s.seat,
        list_concat(r.prompt_block_hashes, r.output_block_hashes)[a.block + 1] AS hash,
        CASE WHEN list_concat(r.prompt_block_hashes, r.output_block_hashes)[a.block + 1] IS NULL THEN 'no hash' WHEN p.pass_index IS NOT NULL THEN 'admission' END AS rule,
        1 AS candidates
    FROM (SELECT * EXCLUDE (ordinal), unnest(range(hit_blocks)) AS block FROM {admissions}) a
    LEFT JOIN {raw_requests} r ON r.request_id = a.request_id
    LEFT JOIN {passes} p ON p.pass_index = a.pass_index
    LEFT JOIN seats s ON s.pass_index = p.pass_index AND s.request_id = a.request_id
    WHERE NOT EXISTS (SELECT 1 FROM {kv_events} WHERE kind IN ('hit', 'readmit'))
),
ordered AS MATERIALIZED (
    SELECT
        *, row_number() OVER (ORDER BY order_ns, seat, CASE kind WHEN 'evict' THEN 1 WHEN 'store' THEN 2 ELSE 0 END, event_index, ordinal) AS move
    FROM (
        SELECT * FROM stored
        UNION ALL BY NAME SELECT * FROM removed
        UNION ALL BY NAME SELECT * FROM reused
        UNION ALL BY NAME SELECT *, -1 AS seat, NULL AS rule, 0 AS candidates FROM blocks WHERE kind = 'clear'
    )
),
clears AS (
    SELECT worker_id, dp_rank, move, row_number() OVER (PARTITION BY worker_id, dp_rank ORDER BY move) AS epoch
    FROM ordered
    WHERE kind = 'clear'
),
named AS (  -- narrow, as what a window sorts it carries along
    SELECT
        o.move, o.order_ns, o.hash, hash(o.worker_id, o.dp_rank) AS pool, hash(o.worker_id, o.dp_rank, c.epoch) AS emptied,
        o.kind = 'store' AS stores, o.kind = 'store' AND NOT coalesce(o.restored, false) AS computes, o.kind = 'evict' AS evicts
    FROM ordered o
    ASOF LEFT JOIN clears c ON c.worker_id IS NOT DISTINCT FROM o.worker_id AND c.dp_rank IS NOT DISTINCT FROM o.dp_rank AND c.move <= o.move
    WHERE o.hash IS NOT NULL
),
history AS (  -- sums of flags: a count with a filter walks its window anew for every row
    SELECT
        move,
        coalesce(sum(stores::TINYINT) OVER (PARTITION BY hash ORDER BY move ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::BIGINT AS stores_before,
        coalesce(sum(stores::TINYINT) OVER (PARTITION BY hash, pool ORDER BY move ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::BIGINT AS stores_here,
        coalesce(sum(computes::TINYINT) OVER (PARTITION BY hash, pool ORDER BY move ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::BIGINT AS computed_here,
        coalesce(sum(stores::TINYINT - evicts::TINYINT) OVER held, 0)::BIGINT AS held_before,
        lag(order_ns) OVER (PARTITION BY hash, pool ORDER BY move) AS last_move_ns
    FROM named
    WINDOW held AS (PARTITION BY hash, emptied ORDER BY move ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
),
again AS (  -- what a request touches once more after a preemption
    SELECT move, row_number() OVER (PARTITION BY hash, request_id ORDER BY move) > 1 AS own
    FROM ordered
    WHERE kind IN ('store', 'hit', 'readmit') AND request_id IN (SELECT request_id FROM {kv_events} WHERE kind = 'preempt')
)
SELECT
    o.move, o.order_ns AS time_ns, o.pass_index, o.kind, coalesce(o.restored, false) AS restored, o.hash, o.request_id, o.reason, o.age_ns, o.worker_id, o.dp_rank,
    o.rule IS NOT NULL AND o.rule <> 'no hash' AS identified,
    CASE
        WHEN o.rule IS NOT NULL THEN o.rule
        WHEN NOT EXISTS (SELECT 1 FROM {passes}) THEN 'no passes recorded'
        WHEN o.pass_index IS NULL THEN 'outside every recorded pass'
        WHEN NOT EXISTS (SELECT 1 FROM seats) THEN 'members of passes not recorded'
        WHEN $block_size IS NULL THEN 'block size unknown'
        WHEN o.candidates > 1 THEN 'several requests possible'
        ELSE 'no request of the pass fits'
    END AS rule,
    h.stores_before, h.stores_here, h.computed_here, h.held_before, h.last_move_ns, coalesce(a.own, false) AS own_again
FROM ordered o
LEFT JOIN history h ON h.move = o.move
LEFT JOIN again a ON a.move = o.move
