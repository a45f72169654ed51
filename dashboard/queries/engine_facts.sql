-- Of how many requests something is known that only the engine sees.
SELECT count(received_ns) AS arrival, count(first_admit_ns) AS admission, count(preemptions) AS preemption
FROM {run.requests}
