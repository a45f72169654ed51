"""When requests are estimated to reach the engine, and cancels, against when they were recorded to."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from engine.bundle.reader import Bundle
from engine.parity.recorded import RecordedRun
from engine.parity.way import Floats, Ints, Sightings, Way, estimate_way


class Clock:
    """When each request is estimated to reach the engine, and when the engine looks for it (ms)."""

    def __init__(self, bundle: Bundle, recorded: RecordedRun) -> None:
        requests = recorded.requests
        taken, gone = _taken_and_gone(recorded)
        self.taken = taken
        start, end = recorded.start_ns / 1e6, recorded.end_ns / 1e6
        self.start = start
        before = np.append(-np.inf, end[:-1])
        idle = _idle(taken, gone, recorded.num_passes)
        self._looks = np.stack([np.where(idle, start, before), start])
        told = bundle.table("requests", ["request_id", "status", "dispatched_ns", "received_ns", "end_ns"])
        rows: dict[str, dict[str, Any]] = {} if told is None else {r["request_id"]: r for r in told.to_pylist()}
        of = [rows.get(request.request_id, {}) for request in requests]
        self.dispatched = _ms([row.get("dispatched_ns") for row in of])
        tokens = np.array([request.prompt_tokens for request in requests], np.float64)
        known = np.isfinite(self.dispatched)
        seen = known & (taken > 0) & (taken < recorded.num_passes)
        received = np.array([row.get("received_ns") is not None for row in of], np.bool_)
        if (seen & received).any():  # of the others it is only inferred which pass took them
            seen &= received
        low, high = (self._looks[:, taken[seen] - back] - self.dispatched[seen] for back in (1, 0))
        self.way: Way = estimate_way(Sightings(self.dispatched[seen], tokens[seen], low, high))
        self.look = self._looks[self.way.look]
        self.arrives = np.full(len(requests), np.nan)
        self.arrives[known] = self.way.arrivals(self.dispatched[known], tokens[known])
        """NaN where nobody recorded the dispatch: such a request comes for the pass that took it."""
        ended = _ms([row.get("end_ns") if row.get("status") == "canceled" else None for row in of])
        self.dropped = ended + self.way.constant_ms
        """When the engine learns that a request was canceled; NaN for one that the client did not cancel."""


def _taken_and_gone(recorded: RecordedRun) -> tuple[Ints, Ints]:
    """For each request the pass that took it and the first without it."""
    count, passes = len(recorded.requests), recorded.num_passes
    first, last = np.full(count, passes), np.full(count, -1)
    np.minimum.at(first, recorded.batches.index, recorded.batches.pass_index)
    np.maximum.at(last, recorded.batches.index, recorded.batches.pass_index)
    arrival = np.array([request.arrival for request in recorded.requests], np.int64)
    aborted = np.array([passes if r.aborted is None else r.aborted for r in recorded.requests], np.int64)
    taken = np.minimum(arrival, first)  # a batch proves that it was there
    return taken, np.maximum(np.where(last >= 0, last + 1, aborted), taken)


def _idle(taken: Ints, gone: Ints, passes: int) -> npt.NDArray[np.bool_]:
    """Passes before which nobody was there: the engine waited for the first to come."""
    inside = taken < passes
    change = np.bincount(taken[inside], minlength=passes + 1) - np.bincount(
        np.minimum(gone[inside], passes), minlength=passes + 1
    )
    there = np.cumsum(change)[:passes]  # with those that came for the pass, without those that left before it
    came = np.bincount(taken[inside], minlength=passes)[:passes]
    idle: npt.NDArray[np.bool_] = there - came <= 0
    return idle


def _ms(values: list[int | None]) -> Floats:
    return np.array([np.nan if value is None else value / 1e6 for value in values], np.float64)


class Estimated:
    """What happens once to each of some requests: when it is estimated to, against when it was recorded to.

    ``ahead`` are requests to which it happened by estimate alone so far, ``behind`` those by record alone.
    """

    def __init__(self, times: dict[int, float]) -> None:
        self.times = times
        self._order = sorted(times, key=lambda n: (times[n], n))
        self._next = 0
        self._again: list[int] = []
        self._settled: set[int] = set()
        self.ahead: set[int] = set()
        self.behind: set[int] = set()

    @property
    def next_time(self) -> float:
        """When it happens next; infinite where it does not."""
        while self._next < len(self._order) and self._order[self._next] in self._settled:
            self._next += 1
        times = [self.times[n] for n in (*self._again[:1], *self._order[self._next : self._next + 1])]
        return min(times, default=np.inf)

    def due(self, until: float) -> list[int]:
        """To whom it has happened by then, in order."""
        found, self._again = self._again, []
        while self._next < len(self._order) and self.times[self._order[self._next]] <= until:
            if self._order[self._next] not in self._settled:
                found.append(self._order[self._next])
            self._next += 1
        self.ahead.update(n for n in found if n not in self.behind)
        self.behind.difference_update(found)
        return found

    def recorded(self, n: int) -> None:
        """It was recorded to happen now."""
        if n in self.ahead:
            self.ahead.remove(n)
        else:
            self.behind.add(n)

    def resynchronise(self) -> None:
        """Take the record for the estimate: what is ahead has yet to happen, what is behind has happened."""
        self._again = sorted(self.ahead, key=lambda n: (self.times[n], n))
        self._settled |= self.behind
        self.ahead, self.behind = set(), set()
