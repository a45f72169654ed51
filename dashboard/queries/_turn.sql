-- Which source-turn a request is. `again` counts how often the same one was sent before, in order of dispatch; the name is that
-- of a link (dashboard.view.turn_key). A request without conversation or turn goes by its id.
row_number() OVER (
        PARTITION BY source_trace_id, source_kind, source_outer_index, source_inner_index, conversation_id, turn_index,
            CASE WHEN conversation_id IS NULL OR turn_index IS NULL THEN request_id END
        ORDER BY dispatched_ns, request_id
    ) - 1 AS again,
    CASE
        WHEN conversation_id IS NULL OR turn_index IS NULL THEN '=' || request_id
        ELSE conversation_id || CASE WHEN again > 0 THEN '#' || again ELSE '' END || '/' || turn_index
    END AS turn
