-- How many source-turns the requests of two runs name, and how many of these names both have, whatever became of them.
WITH measured_names AS (
    SELECT DISTINCT source_trace_id, source_kind, source_outer_index, source_inner_index, conversation_id, turn_index
    FROM {measured.requests}
    WHERE conversation_id IS NOT NULL
),
replay_names AS (
    SELECT DISTINCT source_trace_id, source_kind, source_outer_index, source_inner_index, conversation_id, turn_index
    FROM {replay.requests}
    WHERE conversation_id IS NOT NULL
)
SELECT
    (SELECT count(*) FROM measured_names) AS measured,
    (SELECT count(*) FROM replay_names) AS replay,
    (SELECT count(*) FROM (FROM measured_names INTERSECT FROM replay_names)) AS shared
