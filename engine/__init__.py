"""The replay engine: traces, client, server, timing, run bundles and importers. Knows nothing of the dashboard."""
