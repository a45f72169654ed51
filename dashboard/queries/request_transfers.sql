-- The way of one request's KV between two pools: no row where it took none.
SELECT reserved_ns, end_ns AS transferred_ns
FROM {run.transfers}
WHERE request_id = $request_id
