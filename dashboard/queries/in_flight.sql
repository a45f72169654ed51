-- Requests in flight at the start of each time bin, and dispatches, admissions and completions inside it.
WITH moves AS (
    SELECT 'dispatch' AS kind, dispatched_ns AS time_ns FROM {run.requests}
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
        count(*) FILTER (kind = 'dispatch') AS dispatched,
        count(*) FILTER (kind = 'admission') AS admitted,
        count(*) FILTER (kind = 'completion') AS completed,
        count(*) FILTER (kind = 'other_end') AS ended_otherwise
    FROM (SELECT bin, kind FROM binned UNION ALL SELECT unnest(range(-1, $bins)), NULL)
    GROUP BY bin
),
running AS (
    SELECT
        *,
        coalesce(sum(dispatched - completed - ended_otherwise) OVER (ORDER BY bin ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS in_flight
    FROM counts
)
SELECT $start_ns + bin * ($end_ns - $start_ns) // $bins AS time_ns, in_flight, dispatched, admitted, completed, ended_otherwise
FROM running
WHERE bin >= 0
ORDER BY bin
