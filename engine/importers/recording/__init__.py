"""Recordings of a real engine: client rows, forward passes and KV events of one run, or a sweep of pass shapes."""

from engine.importers.recording.formats import RECORDINGS, SWEEPS, schema_hint
from engine.importers.recording.native import native_metrics, rate_windows
from engine.importers.recording.run import import_recording
from engine.importers.recording.stream import PASS_STREAMS
from engine.importers.recording.sweep import import_sweep

__all__ = [
    "PASS_STREAMS",
    "RECORDINGS",
    "SWEEPS",
    "import_recording",
    "import_sweep",
    "native_metrics",
    "rate_windows",
    "schema_hint",
]
