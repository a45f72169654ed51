-- The names of source-turns, as a link has them, by the number of their request in the run.
SELECT request_number AS member, turn FROM {run.requests} WHERE list_contains($members, request_number)
