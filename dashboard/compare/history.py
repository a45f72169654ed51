"""One number over the runs of one experiment, and which of them is out of line with the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dashboard.compare.noise import Noise, noise
from dashboard.compare.numbers import Key, Number, number
from dashboard.metrics import Estimator, Population
from dashboard.queries.history import Member, series
from dashboard.store import Store

Line = Literal["in line", "out of line", "too few others", "unknown"]
FEWEST = 2
"""Other sound runs that it takes to say that one is out of line."""
MOST = 60
"""Runs of a series, the latest: each is drawn again for its bootstrap."""


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a history: its number, the bootstrap over its own rows, and how it stands to the other sound runs."""

    member: Member
    value: Number
    bootstrap: Noise | None
    line: Line


def history(store: Store, run_id: str, key: Key, population: Population, estimator: Estimator) -> tuple[Point, ...]:
    """A number over the runs of one experiment, in the order of their time; at most the latest ``MOST``."""
    members = series(store, run_id)[-MOST:]
    cache_key = ("history", key, population, estimator, tuple(one.run_id for one in members))

    def make() -> tuple[Point, ...]:
        values = [number(store, one.run_id, key, population, estimator) for one in members]
        drawn = [
            noise(store, one.run_id, key, population, estimator, (), value)
            for one, value in zip(members, values, strict=True)
        ]
        points = []
        for at, member in enumerate(members):
            others = [
                value.value
                for other, value in enumerate(values)
                if other != at and not members[other].failed and value.value is not None
            ]
            points.append(Point(member, values[at], drawn[at], in_line(values[at].value, others, drawn[at])))
        return tuple(points)

    found: tuple[Point, ...] = store.remember(cache_key, make, runs=[one.run_id for one in members])
    return found


def in_line(value: float | None, others: Sequence[float], drawn: Noise | None) -> Line:
    """Whether a value is in line with those of the other runs.

    It is out of line when it lies outside of their range by more than the width of that range, and its own bootstrap
    does not reach the range either.
    """
    if value is None:
        return "unknown"
    if len(others) < FEWEST:
        return "too few others"
    low, high = min(others), max(others)
    width = high - low
    beyond = value < low - width or value > high + width
    reached = drawn is not None and drawn.low <= high and drawn.high >= low
    return "out of line" if beyond and not reached else "in line"
