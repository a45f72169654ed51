-- What the time of each request of a run went to, in nanoseconds. NULL: not recorded, or not known for this request.
--   way, wait    dispatched to received: the way to the engine, and the wait there for the running pass
--   pre_*        first admission to the end of the pass that computes the first token
--   post_*       from there to the end of the pass that computes the last token
--   *_prefill, *_mixed, *_decode: passes of that class meanwhile; *_waiting: preempted and not readmitted yet;
--   *_host: running, and no pass runs
--   transfer     prompt computed to its KV at the worker that decodes it, room there included; 0 where nothing is transferred
--   member       the number of the request in the table of the run
--   streamed, visible_tokens: from the first to the last visible token, and how many
-- Times in passes are differences of sums over the passes of a rank, read off where the stages begin and end.
WITH ranked AS (
    SELECT
        CASE WHEN (SELECT count(DISTINCT (worker_id, dp_rank)) FROM {passes}) > 1 THEN concat_ws('/', worker_id, dp_rank) ELSE '' END AS engine_rank,
        pass_index, start_ns, end_ns, class, num_prefill_requests, members
    FROM {passes}
),
spans AS (
    SELECT
        * EXCLUDE (members, num_prefill_requests),
        least(end_ns, coalesce(lead(start_ns) OVER (PARTITION BY engine_rank ORDER BY start_ns, pass_index), end_ns)) AS until_ns
    FROM ranked
),
passes AS MATERIALIZED (
    SELECT
        *,
        coalesce(sum(CASE WHEN class = 'prefill_only' THEN until_ns - start_ns END) OVER earlier, 0)::BIGINT AS prefill_ns,
        coalesce(sum(CASE WHEN class = 'mixed' THEN until_ns - start_ns END) OVER earlier, 0)::BIGINT AS mixed_ns,
        coalesce(sum(CASE WHEN class = 'decode_only' THEN until_ns - start_ns END) OVER earlier, 0)::BIGINT AS decode_ns
    FROM spans
    WHERE until_ns > start_ns
    WINDOW earlier AS (PARTITION BY engine_rank ORDER BY start_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
),
-- ``first_rank`` computes the prompt; it may be another than the one that decodes.
routed AS (
    SELECT
        r.request_id, dispatched_ns, received_ns, first_admit_ns, r.released_ns, input_tokens, output_tokens, preemptions,
        CASE WHEN (SELECT count(DISTINCT (worker_id, dp_rank)) FROM {passes}) > 1 THEN concat_ws('/', worker_id, dp_rank) ELSE '' END AS engine_rank,
        concat_ws('/', t.prefill_worker_id, CASE WHEN t.prefill_worker_id IS NOT NULL THEN dp_rank END) AS prefill_rank,
        t.end_ns AS transferred_ns, t.admitted_ns AS joined_ns
    FROM {requests} r
    LEFT JOIN {transfers} t ON t.request_id = r.request_id
),
sent AS (SELECT *, CASE WHEN prefill_rank = '' THEN engine_rank ELSE prefill_rank END AS first_rank FROM routed),
computing AS (
    SELECT request_id, min(end_ns) AS first_token_ns
    FROM (
        SELECT end_ns, unnest(members, max_depth := 2)
        FROM ranked
        WHERE num_prefill_requests > 0
    )
    JOIN (SELECT request_id, input_tokens FROM sent) USING (request_id)
    WHERE computed_before + scheduled_tokens >= input_tokens
    GROUP BY request_id
),
-- The engine takes requests between two passes, so one that comes while a pass runs waits for its end, and how long is
-- not recorded: the way took at most all of dispatched to received, and at least what lies outside that pass. Before the
-- first pass the engine is idle, where passes are recorded from the first one of the request on.
arrivals AS (
    SELECT
        request_id,
        received_ns - dispatched_ns AS most_ns,
        received_ns - dispatched_ns
            - CASE WHEN p.start_ns IS NULL THEN 0 ELSE greatest(0, least(p.end_ns, received_ns) - greatest(p.start_ns, dispatched_ns)) END AS least_ns
    FROM sent r
    LEFT JOIN computing c USING (request_id)
    ASOF LEFT JOIN passes p ON r.first_rank = p.engine_rank AND r.received_ns > p.start_ns
    WHERE received_ns IS NOT NULL AND (p.start_ns IS NOT NULL OR c.first_token_ns IS NOT NULL)
),
-- The way that agrees best with these bounds (least sum of distances) is the median of all of them.
typical AS (SELECT median(bound) AS way_ns FROM (SELECT unnest([least_ns, most_ns]) AS bound FROM arrivals)),
ways AS (
    SELECT a.request_id, greatest(least(round(t.way_ns)::BIGINT, a.most_ns), a.least_ns) AS way_ns, a.most_ns
    FROM arrivals a CROSS JOIN typical t
),
first_pass AS (
    SELECT request_id, p.end_ns AS first_pass_ns
    FROM sent r
    ASOF JOIN passes p ON r.first_rank = p.engine_rank AND r.first_admit_ns <= p.start_ns
),
last_pass AS (
    SELECT request_id, p.end_ns AS last_pass_ns
    FROM sent r
    ASOF JOIN passes p ON r.engine_rank = p.engine_rank AND r.released_ns > p.start_ns
),
waits AS (
    SELECT request_id, away.time_ns AS from_ns, back.time_ns AS to_ns
    FROM (
        SELECT request_id, time_ns, row_number() OVER (PARTITION BY request_id ORDER BY time_ns) AS ordinal
        FROM {kv_events}
        WHERE kind = 'preempt' AND request_id IS NOT NULL
    ) away
    JOIN (
        SELECT request_id, time_ns, row_number() OVER (PARTITION BY request_id ORDER BY time_ns) AS ordinal
        FROM {admissions}
        WHERE is_readmission
    ) back USING (request_id, ordinal)
),
waited AS (SELECT request_id, count(*) AS waits FROM waits GROUP BY request_id),
moments AS (
    SELECT
        r.request_id, r.engine_rank, r.first_rank, r.first_admit_ns, f.first_pass_ns, c.first_token_ns, r.transferred_ns,
        coalesce(r.joined_ns, c.first_token_ns) AS post_from_ns,
        CASE WHEN r.output_tokens = 1 THEN c.first_token_ns WHEN l.last_pass_ns >= c.first_token_ns THEN l.last_pass_ns END AS last_token_ns,
        coalesce(w.waits, 0) = coalesce(r.preemptions, 0) AS waits_known
    FROM sent r
    LEFT JOIN first_pass f USING (request_id)
    LEFT JOIN computing c USING (request_id)
    LEFT JOIN last_pass l USING (request_id)
    LEFT JOIN waited w USING (request_id)
),
points AS (
    SELECT request_id, first_rank AS engine_rank, first_admit_ns AS time_ns, -1 AS pre, 0 AS post, 0 AS away FROM moments
    UNION ALL
    SELECT request_id, first_rank, first_token_ns, 1, 0, 0 FROM moments
    UNION ALL
    SELECT request_id, engine_rank, post_from_ns, 0, -1, 0 FROM moments
    UNION ALL
    SELECT request_id, engine_rank, last_token_ns, 0, 1, 0 FROM moments
    UNION ALL
    SELECT request_id, CASE WHEN to_ns <= first_token_ns THEN first_rank ELSE engine_rank END, from_ns, (to_ns <= first_token_ns)::INT, (from_ns >= first_token_ns)::INT, -1
    FROM waits JOIN moments USING (request_id)
    UNION ALL
    SELECT request_id, CASE WHEN to_ns <= first_token_ns THEN first_rank ELSE engine_rank END, to_ns, -(to_ns <= first_token_ns)::INT, -(from_ns >= first_token_ns)::INT, 1
    FROM waits JOIN moments USING (request_id)
),
placed AS (
    SELECT
        r.request_id, r.time_ns, r.pre, r.post, r.away,
        coalesce(p.prefill_ns, 0) + CASE WHEN p.class = 'prefill_only' THEN least(r.time_ns, p.until_ns) - p.start_ns ELSE 0 END AS prefill_ns,
        coalesce(p.mixed_ns, 0) + CASE WHEN p.class = 'mixed' THEN least(r.time_ns, p.until_ns) - p.start_ns ELSE 0 END AS mixed_ns,
        coalesce(p.decode_ns, 0) + CASE WHEN p.class = 'decode_only' THEN least(r.time_ns, p.until_ns) - p.start_ns ELSE 0 END AS decode_ns
    FROM points r
    ASOF LEFT JOIN passes p ON r.engine_rank = p.engine_rank AND r.time_ns >= p.start_ns
    WHERE r.time_ns IS NOT NULL
),
added AS (
    SELECT
        request_id,
        sum(pre * time_ns)::BIGINT AS pre_ns, sum(post * time_ns)::BIGINT AS post_ns,
        sum(pre * prefill_ns)::BIGINT AS pre_prefill_ns, sum(post * prefill_ns)::BIGINT AS post_prefill_ns,
        sum(pre * mixed_ns)::BIGINT AS pre_mixed_ns, sum(post * mixed_ns)::BIGINT AS post_mixed_ns,
        sum(pre * decode_ns)::BIGINT AS pre_decode_ns, sum(post * decode_ns)::BIGINT AS post_decode_ns,
        coalesce(sum(time_ns * away) FILTER (away <> 0 AND pre <> 0), 0)::BIGINT AS pre_waiting_ns,
        coalesce(sum(time_ns * away) FILTER (away <> 0 AND post <> 0), 0)::BIGINT AS post_waiting_ns
    FROM placed
    GROUP BY request_id
),
seen AS (
    SELECT
        request_id, sum(tokens)::BIGINT AS visible_tokens,
        max(coalesce(time_ns, after_ns)) - min(coalesce(time_ns, after_ns)) AS streamed_ns
    FROM {chunks}
    WHERE visible AND (tokens > 0 OR tokens IS NULL)
    GROUP BY request_id
    HAVING bool_and(tokens IS NOT NULL)
)
SELECT
    m.request_id, r.request_number AS member, w.way_ns, w.most_ns - w.way_ns AS wait_ns, m.first_pass_ns, m.first_token_ns, m.last_token_ns,
    coalesce(m.transferred_ns - m.first_token_ns, 0) AS transfer_ns,
    CASE WHEN pre THEN pre_prefill_ns END AS pre_prefill_ns,
    CASE WHEN pre THEN pre_mixed_ns END AS pre_mixed_ns,
    CASE WHEN pre THEN pre_decode_ns END AS pre_decode_ns,
    CASE WHEN pre THEN pre_waiting_ns END AS pre_waiting_ns,
    CASE WHEN pre THEN a.pre_ns - pre_prefill_ns - pre_mixed_ns - pre_decode_ns END AS pre_host_ns,
    CASE WHEN post THEN post_prefill_ns END AS post_prefill_ns,
    CASE WHEN post THEN post_mixed_ns END AS post_mixed_ns,
    CASE WHEN post THEN post_decode_ns END AS post_decode_ns,
    CASE WHEN post THEN post_waiting_ns + coalesce(m.post_from_ns - m.transferred_ns, 0) END AS post_waiting_ns,
    CASE WHEN post THEN a.post_ns - a.post_prefill_ns - a.post_mixed_ns - a.post_decode_ns END AS post_host_ns,
    s.visible_tokens, s.streamed_ns
FROM (
    SELECT
        *,
        waits_known AND first_admit_ns IS NOT NULL AND first_token_ns IS NOT NULL AS pre,
        waits_known AND last_token_ns IS NOT NULL AS post
    FROM moments
) m
JOIN {requests} r USING (request_id)
LEFT JOIN ways w USING (request_id)
LEFT JOIN added a USING (request_id)
LEFT JOIN seen s USING (request_id)
