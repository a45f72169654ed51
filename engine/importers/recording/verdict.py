"""The answer to one question: pass, fail with its offenders, or unknown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.bundle import Check

NAMED = 5
"""How many offenders a detail names."""


def verdict(check: str, bad: Sequence[Any], checked: int, good: str, wrong: str) -> Check:
    """``pass`` when nothing is bad, ``unknown`` when nothing could be checked; the words get the counts.

    ``bad`` holds what a detail names, or is a range where there is only a number of them.
    """
    if bad:
        offenders = "" if isinstance(bad, range) else f": {names(bad)}"
        return Check(check, "fail", f"{len(bad)} of {checked} {wrong}{offenders}")
    if not checked:
        return Check(check, "unknown", f"nothing to check: {good}")
    return Check(check, "pass", f"{checked} of {checked} {good}")


def names(bad: Sequence[Any]) -> str:
    """The first offenders in words, and how many more there are."""
    more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
    return ", ".join(map(str, bad[:NAMED])) + more
