"""The Pareto front of throughput against a latency: the points that nothing beats in both."""

from __future__ import annotations

from collections.abc import Sequence

Pair = tuple[float, float]


def on_front(points: Sequence[Pair | None]) -> list[bool]:
    """Which points (throughput, latency) no other one dominates.

    One dominates another that has no more throughput and no less latency, and is worse in at least one of them. Equal
    points stand together; a point without one of its numbers (None) is on no front.
    """
    known = [point for point in points if point is not None]
    return [point is not None and not any(_dominates(other, point) for other in known) for point in points]


def _dominates(one: Pair, other: Pair) -> bool:
    return one[0] >= other[0] and one[1] <= other[1] and one != other
