"""Parity of the replay's scheduler with a recording that was just made."""

from __future__ import annotations

from collections.abc import Iterator

from engine.bundle import Bundle, Check
from engine.errors import GapscopeError
from engine.parity import check_parity
from engine.parity.result import ParityResult

CORES = ("plain", "skipping")
_CIRCUMSTANCES = frozenset({"client_on_time", "contention", "phases_complete"})
"""Checks of how the load and the machine were, not of whether what was recorded agrees with itself."""
COMPARED = (
    "compared: who is in each pass, in order, with how many tokens; how many blocks are stored and removed, and their "
    "order by content. Hashes are only names of contents here (kv_hash_content)."
)


def contradictions(bundle: Bundle) -> list[Check]:
    """The failed checks of whether a recording is whole and agrees with itself."""
    return [c for c in bundle.qualification if c.verdict == "fail" and c.check not in _CIRCUMSTANCES]


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
