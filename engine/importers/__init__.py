"""Measured formats, one module each, turned into run bundles."""
