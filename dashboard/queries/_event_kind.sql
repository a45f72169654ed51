-- What happened to blocks, and where if not in the pool: docs/bundle.md, kv_events.
CASE WHEN coalesce(tier, 'device') = 'device' THEN kind ELSE kind || ' (' || tier || ')' END
