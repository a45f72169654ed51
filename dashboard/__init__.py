"""The review dashboard: catalogue, SQL, comparison, charts and pages over run bundles."""
