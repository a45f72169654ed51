-- Requests by a number: told apart faster than by the text of an id.
SELECT request_id, lane, status, row_number() OVER (ORDER BY dispatched_ns, request_id) - 1 AS request FROM {run.requests}
