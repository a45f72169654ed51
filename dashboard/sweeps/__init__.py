"""Sweeps and sensitivities: which points are played, and what came of them (docs/dashboard.md)."""
