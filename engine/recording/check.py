"""Parity of the replay's scheduler with a recording that was just made."""

from __future__ import annotations

from collections.abc import Iterator

from engine.bundle import Bundle
from engine.errors import GapscopeError
from engine.parity import check_parity
from engine.parity.result import ParityResult

CORES = ("plain", "skipping")


def check(bundle: Bundle) -> Iterator[ParityResult]:
    """How far each core agrees with the recorded batches and cache events.

    Raises:
        GapscopeError: the run does not record its batches, or its identity not the scheduler's settings.
    """
    if "passes" not in bundle.tables:
        raise GapscopeError(
            f"Run {bundle.run_id} has no passes to check: lay the server's rows under it with `gapscope record join`."
        )
    for core in CORES:
        yield check_parity(bundle, core)
