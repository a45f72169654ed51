"""Values in the place of a time that are none: left out of the rows, and said."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from engine.bundle import Check
from engine.importers.clients.aiperf.values import LARGEST_S
from engine.intake.rows import number


@dataclass
class Unusable:
    """Counts values that are no number, negative, not finite or beyond every clock, by the figure that they are of."""

    aside: str = "Requests are counted from 0"
    """How to find the request that is named, where that must be said."""
    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    """The first of each figure in words."""

    def take(self, name: str, place: int, value: Any, signed: bool = False) -> None:
        """Look at a value, a list of gaps or a number of seconds; ``signed``: of a clock that starts anywhere."""
        if value is None or (_gaps_good(value) if isinstance(value, list) else _good(value, signed)):
            return
        if isinstance(value, list):
            value = next(gap for gap in value if not _good(gap)) if not all(map(_good, value)) else sum(value)
        self.note(name, f"of request {place}", value)

    def note(self, name: str, where: str, value: Any) -> None:
        """Count a value that is no time, found ``where``."""
        self.counts[name] = self.counts.get(name, 0) + 1
        self.first.setdefault(name, f"the first is {value!r:.40} {where}")

    def check(self) -> Check:
        """The check ``times_usable``."""
        if not self.counts:
            return Check("times_usable", "pass", "every time is a finite number of seconds of 0 or more")
        said = [
            f"{name} of {count:,} request{'s' if count > 1 else ''} ({self.first[name]})"
            for name, count in self.counts.items()
        ]
        words = f"left out, as they are no number, negative, infinite or too large: {'; '.join(said)}"
        return Check("times_usable", "fail", f"{words}. {self.aside}" if self.aside else words)


def _good(value: Any, signed: bool = False) -> bool:
    found = number(value)
    return found is not None and abs(found) <= LARGEST_S and (signed or found >= 0)


def _gaps_good(gaps: list[Any]) -> bool:
    """Whether all gaps are times, and their sum, too; sums are quick where a look at each of many gaps is not."""
    try:
        total = math.fsum(gaps) if gaps else 0.0
    except (OverflowError, ValueError, TypeError):  # too large; infinities of both signs; no numbers
        return False
    return math.isfinite(total) and total <= LARGEST_S and min(gaps, default=0.0) >= 0
