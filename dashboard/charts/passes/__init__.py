"""Passes of the model: their geometry, durations and gaps."""
