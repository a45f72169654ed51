"""The replay: client, server and timing on one clock, and the bundle that says what happened."""

from engine.replay.identity import knobs_from_run
from engine.replay.loop import Canceled, replay, resolve_host_terms, simulate, write
from engine.replay.played import played_trace, trace_digest
from engine.replay.result import ReplayResult
from engine.replay.tables import Tables

__all__ = [
    "Canceled",
    "ReplayResult",
    "Tables",
    "knobs_from_run",
    "played_trace",
    "replay",
    "resolve_host_terms",
    "simulate",
    "trace_digest",
    "write",
]
