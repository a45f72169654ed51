"""Distributions: curves, tails, and the gap by cell."""
