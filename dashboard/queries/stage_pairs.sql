-- The source-turns that the phases of a population share: the numbers of their requests in the two runs.
SELECT request_number AS measured, other_number AS replay
FROM {measured.pairs}
ORDER BY measured
