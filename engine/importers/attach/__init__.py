"""What an engine published, laid under the run of a client: clocks, request ids, tables, checks."""
