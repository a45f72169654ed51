"""Timing models against measured passes: checks, regimes, anchors, and the domain they cover."""
