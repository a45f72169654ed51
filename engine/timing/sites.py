"""Where a fitted model was measured: sites that carry curves, and how a query finds its place among them.

A curve holds, at its knots, the ratio of the measured median to the smooth base (``surface``). Between knots, and
between sites, ratios are interpolated linearly and multiplied with the base at the query's own geometry: what is
interpolated is only what the base does not already explain.

* A **decode site** is a batch size; its curve runs over KV tokens per request.
* A **prefill site** is (prompts, KV tokens per prompt); its curve runs over new tokens.

A query is inside the domain when sites at or below *and* at or above it exist on every axis, each with a curve whose
measured range covers the query. Otherwise the nearest measured point (in octaves) is told, and whoever asked decides
what to do.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log2


@dataclass(frozen=True, slots=True)
class Site:
    """A curve of ratios at one batch size (and, for prefill, one context per prompt).

    ``x_range`` and ``context_range`` are what was measured; knots are medians and lie inside. Past the outer knots the
    ratio is held.
    """

    batch: int
    context: float
    x: tuple[float, ...]
    ratio: tuple[float, ...]
    x_range: tuple[float, float]
    context_range: tuple[float, float]

    def covers(self, x: float) -> bool:
        """Whether the curve was measured on both sides of ``x`` (or at it)."""
        return self.x_range[0] <= x <= self.x_range[1]

    def piece(self, x: float) -> tuple[float, float]:
        """(a, b) with ratio = a + b * x on the stretch of the curve that holds ``x``."""
        i = bisect_right(self.x, x) - 1
        if i < 0:
            return self.ratio[0], 0.0
        if i == len(self.x) - 1:
            return self.ratio[i], 0.0
        slope = (self.ratio[i + 1] - self.ratio[i]) / (self.x[i + 1] - self.x[i])
        return self.ratio[i] - slope * self.x[i], slope

    def at(self, x: float) -> float:
        """Ratio at ``x``."""
        a, b = self.piece(x)
        return a + b * x


Weighted = tuple[tuple[Site, float], ...]
Pair = tuple[Site, Site]
"""Sites of one batch at or below and at or above a context (the same one twice where it stands alone)."""


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
        # Which sites surround a query changes only where a range or a context begins or ends.
        self._x_edges = sorted({x for s in self.all for x in s.x_range})
        self._context_edges = sorted({c for s in self.all for c in (s.context, *s.context_range)})
        self._cells: dict[tuple[int, int, int], tuple[Pair, Pair] | None] = {}

    @property
    def all(self) -> list[Site]:
        """Every site, by batch and context."""
        return [site for batch in self.batches for site in self.groups[batch]]

    def place(self, batch: int, x: float, context: float = 0.0) -> Place:
        """The sites around a query, or the nearest measured point when it lies outside the domain."""
        edges, contexts = self._x_edges, self._context_edges
        cell = (  # an edge is a cell of its own
            batch,
            bisect_left(edges, x) + bisect_right(edges, x),
            bisect_left(contexts, context) + bisect_right(contexts, context),
        )
        if cell in self._cells:
            found = self._cells[cell]
        else:
            found = self._cells[cell] = self._surround(batch, x, context)
        if found is None:
            return self._nearest(batch, x, context)
        lower, upper = found
        if lower is upper:
            return Place(_weigh(lower, context), True, batch, x, context)
        first, last = lower[0].batch, upper[0].batch
        w = (batch - first) / (last - first)
        sites = [(s, v * (1 - w)) for s, v in _weigh(lower, context)] + [(s, v * w) for s, v in _weigh(upper, context)]
        return Place(tuple(sites), True, batch, x, context)

    def _surround(self, batch: int, x: float, context: float) -> tuple[Pair, Pair] | None:
        lower = self._covering(reversed([b for b in self.batches if b <= batch]), x, context)
        if lower is None:
            return None
        if lower[0].batch == batch:
            return lower, lower
        upper = self._covering([b for b in self.batches if b > batch], x, context)
        return None if upper is None else (lower, upper)

    def _covering(self, batches: Iterable[int], x: float, context: float) -> Pair | None:
        for b in batches:
            found = _around(self.groups[b], x, context)
            if found is not None:
                return found
        return None

    def _nearest(self, batch: int, x: float, context: float) -> Place:
        best: tuple[float, Place] | None = None
        for b in self.batches:
            group = self.groups[b]
            near_x = _clip(x, min(s.x_range[0] for s in group), max(s.x_range[1] for s in group))
            near_context = _clip(context, group[0].context_range[0], group[-1].context_range[1])
            found = _around(group, near_x, near_context)
            if found is None:
                site = min(group, key=lambda s: _octaves(context, s.context) + _octaves(x, _clip(x, *s.x_range)))
                near_x, near_context, found = _clip(x, *site.x_range), site.context, (site, site)
            distance = _octaves(batch, b) + _octaves(x, near_x) + _octaves(context, near_context)
            if best is None or distance < best[0]:
                best = distance, Place(_weigh(found, near_context), False, b, near_x, near_context)
        assert best is not None, "a model has at least one site of each kind"
        return best[1]


def _around(group: Sequence[Site], x: float, context: float) -> Pair | None:
    low = high = None
    for site in group:
        if not site.covers(x):
            continue
        if site.context <= context:
            low = site
        if site.context >= context:
            high = site
            break
    if low is None and high is not None and context >= high.context_range[0]:
        low = high
    if high is None and low is not None and context <= low.context_range[1]:
        high = low
    return None if low is None or high is None else (low, high)


def _weigh(pair: Pair, context: float) -> Weighted:
    low, high = pair
    if low is high:
        return ((low, 1.0),)
    w = (context - low.context) / (high.context - low.context)
    return ((low, 1.0 - w), (high, w))


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _octaves(left: float, right: float) -> float:
    return abs(log2((left + 1.0) / (right + 1.0)))


Line = tuple[float, float, float, float]
"""A decode price over the KV sum: (a + c KV) (r0 + r1 KV) nanoseconds before the level."""


def decode_starts(sites: Sites, batch: int, exact: Iterable[int]) -> list[int]:
    """KV sums at which the price of a decode of ``batch`` requests starts to follow another :data:`Line`, from 0 on."""
    starts = {0}
    for site in sites.all:
        for x in (*site.x, *site.x_range):
            near = int(x * batch)
            starts |= {max(0, near - 1), near, near + 1, near + 2}  # an edge is a stretch of its own
    for kv in exact:
        starts |= {kv, kv + 1}
    return sorted(starts)


def decode_line(place: Place, intercept: float, slope: float) -> Line:
    """The price around a ``place`` inside the domain; the smooth base there is ``intercept + slope * KV``."""
    lines = [(w, site.piece(place.x)) for site, w in place.sites]
    r0 = sum(w * a for w, (a, _) in lines)
    r1 = sum(w * b for w, (_, b) in lines) / place.batch
    return intercept, slope, r0, r1
