"""Whether requests fit in the time that a tool says its run took: one wild time moves every span."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.bundle import Check

Floats = npt.NDArray[np.float64]

SLACK = 0.01
SLACK_S = 1.0
"""What a request may lie outside: a second, and a hundredth of the duration. Tools read the clock at other moments."""


def window_start(starts: Floats, length_s: float | None) -> float | None:
    """Start of the window of ``length_s`` that holds the most starts, the earliest of such; all in seconds.

    Without a length it is the first start; None where there is none.
    """
    if not len(starts):
        return None
    ordered = np.sort(starts)
    if length_s is None or length_s <= 0:
        return float(ordered[0])
    held = np.searchsorted(ordered, ordered + length_s + slack_s(length_s), side="right") - np.arange(len(ordered))
    return float(ordered[np.argmax(held)])


def slack_s(length_s: float) -> float:
    """What a request may lie outside of a duration."""
    return SLACK_S + SLACK * length_s


@dataclass
class Spans:
    """When each request was in flight, in seconds on one clock; from 0 where a tool keeps durations alone."""

    ids: list[str] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def take(self, request_id: str, start: float | None, end: float | None) -> None:
        """Add a request; one without a start does not count, one without an end is its start alone."""
        if start is not None:
            self.ids.append(request_id)
            self.starts.append(start)
            self.ends.append(math.nan if end is None else end)

    @property
    def ended(self) -> tuple[Floats, Floats]:
        """Starts and ends of the requests that have both."""
        starts, ends = np.asarray(self.starts, np.float64), np.asarray(self.ends, np.float64)
        return starts[~np.isnan(ends)], ends[~np.isnan(ends)]

    def check(self, length_s: float | None, source: str) -> Check:
        """The check ``within_duration``: whether all lie in one window of the length that ``source`` states."""
        if length_s is None or length_s <= 0:
            return Check("within_duration", "unknown", f"{source} states no duration")
        starts = np.asarray(self.starts, np.float64)
        ends = np.fmax(starts, np.asarray(self.ends, np.float64))
        first, slack = window_start(starts, length_s), slack_s(length_s)
        if first is None:
            return Check("within_duration", "unknown", f"no request has a time to hold the {length_s:.6g} s against")
        words = f"the {length_s:.6g} s that {source} states (up to {slack:.3g} s more are allowed)"
        outside = np.flatnonzero((starts < first) | (ends > first + length_s + slack))
        if not len(outside):
            return Check("within_duration", "pass", f"all {len(starts):,} requests with a time lie within {words}")
        one = outside[0]
        return Check(
            "within_duration",
            "fail",
            f"{len(outside):,} of {len(starts):,} requests with a time lie outside of {words}: together they span "
            f"{ends.max() - starts.min():.6g} s; the first outside is request {self.ids[one]}, which starts at "
            f"{starts[one] - first:.6g} s and ends at {ends[one] - first:.6g} s",
        )
