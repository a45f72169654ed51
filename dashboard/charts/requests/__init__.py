"""Requests from boundary to boundary: all of them, and one source-turn on both sides."""
