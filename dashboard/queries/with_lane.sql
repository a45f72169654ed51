-- How many requests of a run say on which lane they were sent.
SELECT count(lane) AS requests FROM {run.requests}
