"""The client: lanes, phases, arrivals and latency terms."""
