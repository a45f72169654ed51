"""The span of a run whose files state no phases: from the first dispatch to the last thing recorded."""

from __future__ import annotations

from dataclasses import dataclass

from engine.bundle import Phase


@dataclass
class Span:
    """Takes the times of rows, on one clock, in nanoseconds."""

    first: int | None = None
    last: int | None = None

    def take(self, dispatched: int | None, *others: int | None) -> None:
        """Widen the span by a row; a row without a time of dispatch does not count."""
        if dispatched is None:
            return
        self.first = dispatched if self.first is None else min(self.first, dispatched)
        self.last = max(t for t in (self.last, dispatched, *others) if t is not None)

    @property
    def start(self) -> int:
        """The first dispatch, 0 without one."""
        return self.first or 0

    @property
    def phases(self) -> list[Phase]:
        """One profile phase of the whole span; none where nothing was dispatched."""
        return [] if self.first is None or self.last is None else [Phase("profile", 0, max(1, self.last - self.first))]
