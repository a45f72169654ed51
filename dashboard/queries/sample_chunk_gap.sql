-- Gaps between consecutive chunks of the successful requests of a run, with the number of each. The table holds them sorted.
SELECT {metric.column} AS value, lane, request FROM {run.chunk_gaps}
