"""The workload that a run was played with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.bundle import Bundle
from engine.errors import GapscopeError
from engine.traces import CHOICES, stored_trace
from engine.traces.cache import TraceCache
from engine.traces.tree import Trace


def trace_digest(bundle: Bundle) -> str:
    """The digest of the trace that a run was played with.

    Raises:
        GapscopeError: its record does not have it.
    """
    digest = bundle.identity.value("trace", "digest")
    if not digest:
        raise GapscopeError(
            f"The identity of {bundle.run_id} does not say which trace was played: it cannot be replayed, but for "
            "`gapscope replay --trace FILE`, which names one."
        )
    return str(digest)


def played_trace(bundle: Bundle, stores: Sequence[Path], cache: TraceCache | None = None) -> Trace:
    """The trace that a run was played with, read as it was then.

    Raises:
        GapscopeError: its record does not name one, no store has it, or it was altered.
    """
    asked = {name: str(value) for name in CHOICES if (value := bundle.identity.value("trace", name)) is not None}
    return stored_trace(stores, trace_digest(bundle), asked, cache)
