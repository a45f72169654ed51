"""The engine's commands: import, fit, replay, parity, trace (:mod:`engine.cli.main` puts them together)."""
