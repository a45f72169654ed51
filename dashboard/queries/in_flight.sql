-- Requests in flight at the start of each time bin, and dispatches, admissions and completions inside it. A request that
-- ended at a time nobody recorded is dispatched and never in flight; where that is most of them nothing is known of those
-- in flight.
WITH moves AS (
    SELECT
        CASE WHEN end_ns IS NULL AND status <> 'in_flight' THEN 'dispatch_without_end' ELSE 'dispatch' END AS kind,
        dispatched_ns AS time_ns
    FROM {run.requests}
    UNION ALL
    SELECT 'admission', first_admit_ns FROM {run.requests}
    UNION ALL
    SELECT 'completion', end_ns FROM {run.requests} WHERE status = 'ok'
    UNION ALL
    SELECT 'other_end', end_ns FROM {run.requests} WHERE status <> 'ok'
),
binned AS (
    SELECT kind, CASE WHEN time_ns < $start_ns THEN -1 ELSE (time_ns - $start_ns) * $bins // ($end_ns - $start_ns) END AS bin
    FROM moves
    WHERE time_ns IS NOT NULL AND time_ns < $end_ns
),
counts AS (
    SELECT
        bin,
        count(*) FILTER (kind IN ('dispatch', 'dispatch_without_end')) AS dispatched,
        count(*) FILTER (kind = 'dispatch_without_end') AS without_end,
        count(*) FILTER (kind = 'admission') AS admitted,
        count(*) FILTER (kind = 'completion') AS completed,
        count(*) FILTER (kind = 'other_end') AS ended_otherwise
    FROM (SELECT bin, kind FROM binned UNION ALL SELECT unnest(range(-1, $bins)), NULL)
    GROUP BY bin
),
running AS (
    SELECT
        *,
        2 * sum(without_end) OVER () <= sum(dispatched) OVER () AS known,
        coalesce(
            sum(dispatched - without_end - completed - ended_otherwise)
                OVER (ORDER BY bin ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
            0
        ) AS in_flight
    FROM counts
)
SELECT
    $start_ns + bin * ($end_ns - $start_ns) // $bins AS time_ns,
    CASE WHEN known THEN in_flight END AS in_flight,
    dispatched, without_end, admitted, completed, ended_otherwise
FROM running
WHERE bin >= 0
ORDER BY bin
