"""Traces as session trees; one module per trace format."""
