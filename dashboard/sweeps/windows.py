"""Points whose numbers are over another window than those of the measured run, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dashboard.store import Store
from dashboard.sweeps.plan import Point, shown
from dashboard.sweeps.steps import WINDOW
from engine.replay import knobs_from_run

NEARLY = 1e-3
"""Two lengths that differ by less, relative to each other, are one."""
KNOBS = (*sorted(WINDOW), "warmup_requests")
"""What decides which requests are compared: warm-up, profile and the time that its last requests may take."""


def other_window(store: Store, measured: str, base: str, points: Sequence[Point]) -> str:
    """What is said where points are compared over another window than the measured run; empty where none is.

    A length that the measured run does not say is not held against anything.
    """
    own, start = knobs_from_run(store.bundle(measured)), knobs_from_run(store.bundle(base))
    return told(own, [{**start, **point.changes} for point in points if not point.why])


def told(measured: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> str:
    """The same of the knobs of the measured run and of each point."""
    parts = []
    for name in KNOBS:
        values = {point[name] for point in points if name in point}
        other = sorted(value for value in values if name in measured and not _same(value, measured[name]))
        if other:
            among = shown(other[0]) if len(other) == 1 else f"{shown(other[0])} to {shown(other[-1])}"
            some = "" if len(other) == len(values) else " at some points"
            parts.append(f"{name} {among}{some} (measured run: {shown(measured[name])})")
    if not parts:
        return ""
    return (
        f"Points are compared over another window than the measured run: {', '.join(parts)}. Other requests of the "
        "workload are in it, so the distance from the measured run is not that of a setting alone."
    )


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=NEARLY)
