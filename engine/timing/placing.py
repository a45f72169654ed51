"""Places among sites for arrays of queries: what :meth:`engine.timing.sites.Sites.place` says of each, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log2
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.timing.compact import distinct
from engine.timing.contract import Ints
from engine.timing.sites import Sites

Floats = npt.NDArray[np.float64]
Log = Callable[[Floats], Floats]
CHUNK = 1 << 14
"""Queries at a time: what is computed of them stays in the cache."""
IN_DOUBT = 1e-9
"""Octaves by which a point must be nearer than another before a logarithm's last bit cannot matter."""


@dataclass(frozen=True, slots=True)
class Places:
    """n places: interpolated ratio, whether inside the domain, and the geometry read at.

    ``codes`` are the sites that occur (:meth:`Placing.sites_of`), ``which`` says of each place the one of them.
    """

    ratio: Floats
    inside: npt.NDArray[np.bool_]
    batch: Ints
    x: Floats
    context: Floats
    codes: Ints
    which: Ints


class Placing:
    """The search among sites, for arrays."""

    def __init__(self, sites: Sites) -> None:
        self._all = sites.all
        self._batches = np.array(sites.batches, dtype=np.int64)
        sizes = [len(sites.groups[b]) for b in sites.batches]
        self._first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._context = np.array([s.context for s in self._all])
        self._x_low, self._x_high = (np.array([s.x_range[i] for s in self._all]) for i in (0, 1))
        self._c_low, self._c_high = (np.array([s.context_range[i] for s in self._all]) for i in (0, 1))
        self._x_edges = np.array(sorted({x for s in self._all for x in s.x_range}))
        self._c_edges = np.array(sorted({c for s in self._all for c in (s.context, *s.context_range)}))
        self._most = 2.0 ** int(np.ceil(np.log2(max(float(s.x[-1]) for s in self._all) + 2.0)))
        """Knots of one site after another on one axis: the site's number times this, plus the knot."""
        self._knots = np.concatenate([np.array(s.x) + i * self._most for i, s in enumerate(self._all)])
        self._from = np.cumsum([0, *(len(s.x) for s in self._all)])[:-1]
        lines = [_lines(s.x, s.ratio) for s in self._all]
        self._a = np.concatenate([a for a, _ in lines])
        self._b = np.concatenate([b for _, b in lines])
        # Before the first knot, the ratio there is held.
        self._held = np.array([s.ratio[0] for s in self._all])
        self._width = len(self._all) + 1

    def places(self, batch: Ints, x: Any, context: Any) -> Places:
        """The place of each query."""
        n = len(batch)
        x, context = np.asarray(x, dtype=np.float64), np.asarray(context, dtype=np.float64)
        number = distinct(batch)[1]
        x_cell, c_cell = _cells(self._x_edges, x), _cells(self._c_edges, context)
        across, along = 2 * len(self._x_edges) + 1, 2 * len(self._c_edges) + 1
        cells, cell = distinct((number * across + x_cell) * along + c_cell)
        sample = np.empty(len(cells), dtype=np.int64)
        sample[cell] = np.arange(n)
        low, high = self._surround(batch[sample], x[sample], context[sample])
        sites = np.concatenate([low, high], axis=1)
        inside = (sites[:, 0] >= 0)[cell]
        quad = sites[cell]
        at_batch, at_x, at_context = batch.copy(), x.copy(), context.copy()
        out = np.flatnonzero(~inside)
        if len(out):
            around = self._around_clipped(x[sample], context[sample])
            for at in range(0, len(out), CHUNK):
                some = out[at : at + CHUNK]
                asked = batch[some], x[some], context[some], around[:, cell[some]]
                quad[some, :2], at_batch[some], at_x[some], at_context[some] = self._nearest(*asked)
            quad[out, 2:] = -1
        ratio = np.empty(n)
        for at in range(0, n, CHUNK):
            part = slice(at, at + CHUNK)
            ratio[part] = self._ratio(quad[part], at_batch[part], at_x[part], at_context[part])
        width = self._width
        lower, at_lower = distinct((quad[:, 0] + 1) * width + quad[:, 1] + 1)
        upper, at_upper = distinct((quad[:, 2] + 1) * width + quad[:, 3] + 1)
        pairs, which = distinct(at_lower * len(upper) + at_upper)
        codes = lower[pairs // len(upper)] * width * width + upper[pairs % len(upper)]
        return Places(ratio, inside, at_batch, at_x, at_context, codes, which)

    def sites_of(self, code: int) -> list[Any]:
        """The sites that a code stands for, each once."""
        numbers = []
        for _ in range(4):
            code, number = divmod(code, self._width)
            numbers.append(number - 1)
        pairs = numbers[::-1]
        found = []
        for low, high in (pairs[:2], pairs[2:]):
            found += [low] if low == high else [low, high]
        return [self._all[i] for i in found if i >= 0]

    def _surround(self, batch: Ints, x: Floats, context: Floats) -> tuple[Ints, Ints]:
        """Pairs of sites at or below and above each batch; -1 where a query lies outside; the upper is -1 at a site."""
        lower, upper = np.full((len(batch), 2), -1), np.full((len(batch), 2), -1)
        for g, b in enumerate(self._batches.tolist()):
            pair = self._around(g, x, context)
            found = pair[:, 0] >= 0
            below = found & (b <= batch)
            lower[below] = pair[below]
            above = found & (b > batch) & (upper[:, 0] < 0)
            upper[above] = pair[above]
        at_site = (lower[:, 0] >= 0) & (self._batch_of(lower[:, 0]) == batch)
        upper[at_site] = -1
        lost = ~at_site & ((lower[:, 0] < 0) | (upper[:, 0] < 0))
        lower[lost], upper[lost] = -1, -1
        return lower, upper

    def _batch_of(self, site: Ints) -> Ints:
        return self._batches[np.searchsorted(self._first, np.maximum(site, 0), side="right") - 1]

    def _around(self, group: int, x: Floats, context: Floats) -> Ints:
        """The sites of a group at or below and at or above each context that cover x; -1, -1 where one is missing."""
        low, high = np.full(len(x), -1), np.full(len(x), -1)
        for s in range(int(self._first[group]), int(self._first[group + 1])):
            covers = (self._x_low[s] <= x) & (x <= self._x_high[s]) & (high < 0)
            low[covers & (self._context[s] <= context)] = s
            high[covers & (self._context[s] >= context)] = s
        one = (low < 0) & (high >= 0)
        one[one] = context[one] >= self._c_low[high[one]]
        low[one] = high[one]
        one = (high < 0) & (low >= 0)
        one[one] = context[one] <= self._c_high[low[one]]
        high[one] = low[one]
        pair = np.stack([low, high], axis=1)
        pair[(low < 0) | (high < 0)] = -1
        return pair

    def _around_clipped(self, x: Floats, context: Floats) -> Ints:
        """By group, the sites around what of it is nearest to each point: the same ones all over a cell of edges."""
        found = []
        for g in range(len(self._batches)):
            near_x, near_c = self._clipped(g, x, context)
            found.append(self._around(g, near_x, near_c))
        return np.stack(found)

    def _clipped(self, group: int, x: Floats, context: Floats) -> tuple[Floats, Floats]:
        mine = slice(int(self._first[group]), int(self._first[group + 1]))
        near_x = _clip(x, self._x_low[mine].min(), self._x_high[mine].max())
        return near_x, _clip(context, self._c_low[mine][0], self._c_high[mine][-1])

    def _nearest(self, batch: Ints, x: Floats, context: Floats, around: Ints) -> tuple[Ints, Ints, Floats, Floats]:
        """The nearest measured point: its sites, batch, x and context. ``around``: by group, the sites around it.

        By numpy's logarithm, which may differ from the scalar search's in the last bit: where two points are as good as
        equally far, that one decides.
        """
        pairs, at_batch, at_x, at_context, lead = self._by_distance(batch, x, context, around, np.log2)
        doubt = np.flatnonzero(lead < IN_DOUBT)
        if len(doubt):
            found = self._by_distance(batch[doubt], x[doubt], context[doubt], around[:, doubt], _scalar_log2)
            pairs[doubt], at_batch[doubt], at_x[doubt], at_context[doubt] = found[:4]
        return pairs, at_batch, at_x, at_context

    def _by_distance(
        self, batch: Ints, x: Floats, context: Floats, around: Ints, log: Log
    ) -> tuple[Ints, Ints, Floats, Floats, Floats]:
        """The same by one logarithm, and by how much the nearest point is nearer than the next."""
        n = len(batch)
        batches, which = distinct(batch)
        best, lead, group = np.full(n, np.inf), np.full(n, np.inf), np.zeros(n, np.int64)
        alone: dict[int, tuple[Ints, Ints]] = {}
        for g, b in enumerate(self._batches.tolist()):
            near_x, near_c = self._clipped(g, x, context)
            lost = np.flatnonzero(around[g, :, 0] < 0)
            if len(lost):
                mine = slice(int(self._first[g]), int(self._first[g + 1]))
                s = self._nearest_site(mine, x[lost], context[lost], log, lead, lost)
                near_x[lost] = _clip(x[lost], self._x_low[s], self._x_high[s])
                near_c[lost] = self._context[s]
                alone[g] = lost, s
            distance = _octaves(batches.astype(float), np.full(len(batches), float(b)), log)[which]
            distance += _octaves(x, near_x, log)
            distance += _octaves(context, near_c, log)
            lead = np.minimum(lead, np.abs(distance - best))
            group[distance < best] = g
            best = np.minimum(best, distance)
        pairs = around[group, np.arange(n)]
        at_x, at_context = np.empty(n), np.empty(n)
        for g in range(len(self._batches)):
            some = np.flatnonzero(group == g)
            at_x[some], at_context[some] = self._clipped(g, x[some], context[some])
            if g in alone:
                lost, s = alone[g]
                chosen = group[lost] == g
                lost, s = lost[chosen], s[chosen]
                pairs[lost] = s[:, None]
                at_x[lost] = _clip(x[lost], self._x_low[s], self._x_high[s])
                at_context[lost] = self._context[s]
        return pairs, self._batches[group], at_x, at_context, lead

    def _nearest_site(self, group: slice, x: Floats, context: Floats, log: Log, lead: Floats, rows: Ints) -> Ints:
        """The site of a group nearest to queries that none of its pairs holds; narrows the ``lead`` of those rows."""
        best, found = np.full(len(x), np.inf), np.zeros(len(x), np.int64)
        for s in range(group.start, group.stop):
            away = _octaves(context, np.full(len(x), self._context[s]), log)
            away = away + _octaves(x, _clip(x, self._x_low[s], self._x_high[s]), log)
            lead[rows] = np.minimum(lead[rows], np.abs(away - best))
            found[away < best] = s
            best = np.minimum(best, away)
        return found

    def _ratio(self, quad: Ints, batch: Ints, x: Floats, context: Floats) -> Floats:
        """Ratios at places between the sites of ``quad``: lower and upper batch, each below and above the context."""
        two = np.flatnonzero(quad[:, 2] >= 0)
        first, last = self._batch_of(quad[two, 0]), self._batch_of(quad[two, 2])
        share = (batch[two] - first) / (last - first)
        ratio = self._weighed(quad[:, :2], x, context, two, 1.0 - share)
        if len(two):
            more = self._terms(quad[two, 2:], x[two], context[two])
            for weight, value in more:
                ratio[two] = ratio[two] + weight * share * value
        return ratio

    def _weighed(self, pair: Ints, x: Floats, context: Floats, two: Ints, share: Floats) -> Floats:
        total = np.zeros(len(x))
        for weight, value in self._terms(pair, x, context):
            weight[two] = weight[two] * share
            total = total + weight * value
        return total

    def _terms(self, pair: Ints, x: Floats, context: Floats) -> list[tuple[Floats, Floats]]:
        """Weight and ratio of each site of the pairs; the second has no weight where both are one."""
        low, high = pair[:, 0], pair[:, 1]
        apart = np.flatnonzero(low != high)
        w = np.zeros(len(x))
        span = self._context[high[apart]] - self._context[low[apart]]
        w[apart] = (context[apart] - self._context[low[apart]]) / span
        second = np.zeros(len(x))
        second[apart] = self._at(high[apart], x[apart])
        return [(1.0 - w, self._at(low, x)), (w, second)]

    def _at(self, site: Ints, x: Floats) -> Floats:
        """Ratios of sites at x."""
        key = np.minimum(x, self._most - 1.0) + site * self._most
        i = np.searchsorted(self._knots, key, side="right") - 1
        before = i < self._from[site]
        return np.where(before, self._held[site], self._a[i] + self._b[i] * x)


def _lines(x: tuple[float, ...], ratio: tuple[float, ...]) -> tuple[Floats, Floats]:
    """a and b of ratio = a + b x from each knot on; after the last one it is held."""
    a, b = np.array(ratio, dtype=np.float64), np.zeros(len(x))
    for i in range(len(x) - 1):
        b[i] = (ratio[i + 1] - ratio[i]) / (x[i + 1] - x[i])
        a[i] = ratio[i] - b[i] * x[i]
    return a, b


def _cells(edges: Floats, values: Floats) -> Ints:
    """Between which edges values lie; an edge is a cell of its own."""
    at = np.searchsorted(edges, values)
    return 2 * at + (edges[np.minimum(at, len(edges) - 1)] == values)


def _clip(value: Floats, low: Any, high: Any) -> Floats:
    return np.minimum(np.maximum(value, low), high)


def _octaves(left: Floats, right: Floats, log: Log) -> Floats:
    return np.asarray(np.abs(log((left + 1.0) / (right + 1.0))))


def _scalar_log2(values: Floats) -> Floats:
    return np.fromiter(map(log2, values.tolist()), np.float64, len(values))
