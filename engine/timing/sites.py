"""Where a fitted model was measured: sites that carry curves, and how a query finds its place among them.

A curve holds, at its knots, the ratio of the measured median to the smooth base (``surface``). Between knots, and
between sites, ratios are interpolated linearly and multiplied with the base at the query's own geometry: what is
interpolated is only what the base does not already explain.

* A **decode site** is a batch size; its curve runs over KV tokens per request.
* A **prefill site** is (prompts, KV tokens per prompt); its curve runs over new tokens.

A query is inside the domain when sites at or below *and* at or above it exist on every axis, each with a curve that
covers the query. Otherwise the nearest measured point (in octaves) is told, and whoever asked decides what to do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import log2

_EPSILON = 1e-9  # relative: a knot is a median, and median * batch / batch need not come back to the last bit


@dataclass(frozen=True, slots=True)
class Site:
    """A curve of ratios at one batch size (and, for prefill, one context per prompt)."""

    batch: int
    context: float
    x: tuple[float, ...]
    ratio: tuple[float, ...]
    passes: tuple[int, ...]

    def covers(self, x: float) -> bool:
        """Whether the curve was measured on both sides of ``x``."""
        slack = _EPSILON * max(1.0, x)
        return self.x[0] - slack <= x <= self.x[-1] + slack

    def piece(self, x: float) -> tuple[float, float]:
        """(a, b) with ratio = a + b * x on the stretch of the curve around a covered ``x``."""
        last = len(self.x) - 1
        if last == 0 or x >= self.x[last]:
            return self.ratio[last], 0.0
        i = max(0, bisect_right(self.x, x) - 1)
        slope = (self.ratio[i + 1] - self.ratio[i]) / (self.x[i + 1] - self.x[i])
        return self.ratio[i] - slope * self.x[i], slope

    def at(self, x: float) -> float:
        """Ratio at ``x``, held constant past the ends."""
        x = min(max(x, self.x[0]), self.x[-1])
        a, b = self.piece(x)
        return a + b * x


Weighted = tuple[tuple[Site, float], ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a query was read: weighted sites, at the geometry ``(batch, x, context)``; ``inside`` the domain or not."""

    sites: Weighted
    inside: bool
    batch: int
    x: float
    context: float

    @property
    def ratio(self) -> float:
        """The interpolated ratio."""
        return sum(w * site.at(self.x) for site, w in self.sites)


class Sites:
    """All sites of one kind of work, and the search among them."""

    def __init__(self, sites: Iterable[Site]) -> None:
        self.groups: dict[int, list[Site]] = {}
        for site in sorted(sites, key=lambda s: (s.batch, s.context)):
            self.groups.setdefault(site.batch, []).append(site)
        self.batches = sorted(self.groups)

    @property
    def all(self) -> list[Site]:
        """Every site, by batch and context."""
        return [site for batch in self.batches for site in self.groups[batch]]

    def place(self, batch: int, x: float, context: float = 0.0) -> Place:
        """The sites around a query, or the nearest measured point when it lies outside the domain."""
        lower = self._covering(reversed([b for b in self.batches if b <= batch]), x, context)
        if lower is not None:
            if lower[0] == batch:
                return Place(lower[1], True, batch, x, context)
            upper = self._covering([b for b in self.batches if b > batch], x, context)
            if upper is not None:
                w = (batch - lower[0]) / (upper[0] - lower[0])
                sites = tuple((s, v * (1 - w)) for s, v in lower[1]) + tuple((s, v * w) for s, v in upper[1])
                return Place(sites, True, batch, x, context)
        return self._nearest(batch, x, context)

    def _covering(self, batches: Iterable[int], x: float, context: float) -> tuple[int, Weighted] | None:
        for b in batches:
            found = _between(self.groups[b], x, context)
            if found is not None:
                return b, found
        return None

    def _nearest(self, batch: int, x: float, context: float) -> Place:
        best: tuple[float, Place] | None = None
        for b in self.batches:
            group = self.groups[b]
            near_x = _clip(x, min(s.x[0] for s in group), max(s.x[-1] for s in group))
            near_context = _clip(context, group[0].context, group[-1].context)
            found = _between(group, near_x, near_context)
            if found is None:
                site = min(group, key=lambda s: _octaves(context, s.context) + _octaves(x, _clip(x, s.x[0], s.x[-1])))
                near_x, near_context, found = _clip(x, site.x[0], site.x[-1]), site.context, ((site, 1.0),)
            distance = _octaves(batch, b) + _octaves(x, near_x) + _octaves(context, near_context)
            if best is None or distance < best[0] - _EPSILON:
                best = distance, Place(found, False, b, near_x, near_context)
        assert best is not None, "a model has at least one site of each kind"
        return best[1]


def _between(group: Sequence[Site], x: float, context: float) -> Weighted | None:
    low = high = None
    for site in group:
        if not site.covers(x):
            continue
        if site.context <= context:
            low = site
        if site.context >= context:
            high = site
            break
    if low is None or high is None:
        return None
    if low is high:
        return ((low, 1.0),)
    w = (context - low.context) / (high.context - low.context)
    return ((low, 1.0 - w), (high, w))


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _octaves(left: float, right: float) -> float:
    return abs(log2((left + 1.0) / (right + 1.0)))


Line = tuple[float, float, float, float, Place]
"""A decode price over the KV sum, (a + c KV) (r0 + r1 KV) nanoseconds before the level, and where it was read."""


def decode_starts(sites: Sites, batch: int, exact: Iterable[int]) -> list[int]:
    """KV sums at which the price of a decode of ``batch`` requests starts to follow another :data:`Line`, from 0 on."""
    starts = {0}
    for site in sites.all:
        for x in site.x:
            near = int(x * batch)
            starts |= {max(0, near - 1), near, near + 1, near + 2}  # the last point of a curve is a stretch of its own
    for kv in exact:
        starts |= {kv, kv + 1}
    return sorted(starts)


def decode_line(
    sites: Sites, batch: int, start: int, base: Callable[[int], tuple[float, float]], outside_at_own_geometry: bool
) -> Line:
    """The price of a decode of ``batch`` requests from the KV sum ``start`` to the next start.

    ``base(batch)`` returns (intercept, slope over the KV sum) of the smooth base. Outside the domain the price is
    that of the nearest measured point, or, with ``outside_at_own_geometry``, the base at the query times the nearest
    ratio.
    """
    per_request = start / batch
    place = sites.place(batch, per_request)
    priced_at = batch if place.inside or outside_at_own_geometry else place.batch
    intercept, slope = base(priced_at)
    slope *= priced_at / batch  # the same KV per request
    if place.x == per_request:
        lines = [(w, site.piece(place.x)) for site, w in place.sites]
        r0 = sum(w * a for w, (a, _) in lines)
        r1 = sum(w * b for w, (_, b) in lines) / batch
    else:
        r0, r1 = place.ratio, 0.0
        if not outside_at_own_geometry:
            intercept, slope = intercept + slope * batch * place.x, 0.0
    return intercept, slope, r0, r1, place
