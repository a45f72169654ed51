-- Gaps between consecutive visible tokens of the successful requests of a run, with the number of each. The table holds them sorted.
SELECT {metric.column} AS value, lane, request FROM {run.token_gaps}
