"""The run bundle: the one format that measured runs and replays share (docs/bundle.md)."""
