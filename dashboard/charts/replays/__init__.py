"""Replays with other knobs: what-if, sweeps, sensitivity, and their jobs."""
