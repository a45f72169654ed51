"""Which play a lane takes next, and when plays start."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine.errors import GapscopeError
from engine.traces.tree import Trace
from engine.workload.draws import uniform

MS = 1_000_000
S = 1_000_000_000
RATES = ("poisson", "constant")


class Corpus:
    """Hands out what there is to play, by number: to a ``shared`` cursor, or strided by lane.

    What was taken whole is handed out again where it wraps; ``take`` says how often that happened before.
    """

    def __init__(self, size: int, lanes: int, shared: bool, wrap: bool) -> None:
        self._size = size
        self._lanes = lanes
        self._shared = shared
        self._wrap = wrap
        self._taken = [0] * (1 if shared else lanes)

    def take(self, lane: int) -> tuple[int, int] | None:
        """``(times wrapped, number)`` of what this lane plays next; None: nothing is left."""
        slot = 0 if self._shared else lane
        number = self._taken[slot] if self._shared else lane + self._taken[slot] * self._lanes
        incarnation, at = divmod(number, self._size)
        if incarnation and not self._wrap:
            return None
        self._taken[slot] += 1
        return incarnation, at


def lane_starts(
    trace: Trace, knobs: Mapping[str, Any], start_ns: int, deadline_ns: int | None
) -> list[tuple[int, int]]:
    """When each lane starts, in order, with its number.

    In an open loop every play has a lane of its own, in the order of the trace: plays arrive as recorded, or at
    ``arrival_rate`` plays per second, the first at the start, with equal gaps or gaps drawn from an exponential
    distribution.

    Raises:
        GapscopeError: recorded arrivals are asked for that the trace does not have.
    """
    arrivals = knobs["arrivals"]
    if arrivals == "trace":
        recorded = [play.arrival_ns for play in trace.plays if play.arrival_ns is not None]
        if len(recorded) < len(trace.plays):
            raise GapscopeError(
                f"Knob arrivals=trace: {len(trace.plays) - len(recorded)} of the {len(trace.plays)} plays of "
                f"{trace.name} have no arrival time; expected a trace with timestamps, or arrivals=lanes."
            )
        first = min(recorded)
        return sorted((start_ns + at - first, lane) for lane, at in enumerate(recorded))
    if arrivals in RATES:
        return _at_a_rate(trace, knobs, start_ns, deadline_ns)
    stagger = max(0, round(knobs["lane_stagger_ms"] * MS))
    return [(start_ns + lane * stagger, lane) for lane in range(int(knobs["lanes"]))]


def _at_a_rate(trace: Trace, knobs: Mapping[str, Any], start_ns: int, deadline_ns: int | None) -> list[tuple[int, int]]:
    mean_ns = S / knobs["arrival_rate"]
    starts: list[tuple[int, int]] = []
    after_ns = 0.0
    while knobs["wrap"] or len(starts) < len(trace.plays):
        lane = len(starts)
        at = start_ns + round(after_ns if knobs["arrivals"] == "poisson" else lane * mean_ns)
        if deadline_ns is not None and at >= deadline_ns:
            break
        starts.append((at, lane))
        after_ns -= mean_ns * math.log1p(-uniform(knobs["client_seed"], "arrival", lane))
    return starts


def single_requests(trace: Trace) -> list[tuple[int, int, int]]:
    """Every turn as ``(play, conversation, turn)`` by number, in the order of the trace.

    That is the order of the recorded times where every play and turn has one, else play by play.
    """
    rows = [
        (number, at, turn)
        for number, play in enumerate(trace.plays)
        for at, conversation in enumerate(play.conversations)
        for turn in range(len(conversation.turns))
    ]
    times = [
        None if play.arrival_ns is None or turn.start_ns is None else play.arrival_ns + turn.start_ns
        for play in trace.plays
        for conversation in play.conversations
        for turn in conversation.turns
    ]
    known = [time for time in times if time is not None]
    if len(known) < len(rows):
        return rows
    return [rows[n] for n in sorted(range(len(rows)), key=known.__getitem__)]
