"""Decode passes of a table: sites are batches, each with a curve over the KV tokens that are read in sum."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

import numpy as np

from engine.bundle.schema import RESOLUTIONS
from engine.timing.compact import distinct
from engine.timing.contract import Ints
from engine.timing.tables.layout import Point

INTERPOLATED, EXACT = (RESOLUTIONS.index(name) for name in ("interpolated", "exact"))
MOST_SITES = 4
FARTHEST = 2.0
"""Octaves of an axis up to which a site counts as near."""
_BITS = 40
"""KV sums are below 2 ** 40."""


@dataclass(frozen=True)
class Curve:
    """Milliseconds over a growing axis; between its points they are interpolated linearly."""

    x: list[int]
    ms: list[float]

    def covers(self, x: int) -> bool:
        """Whether it was measured on both sides of ``x``, or at it."""
        return self.x[0] <= x <= self.x[-1]

    def line(self, x: int) -> tuple[float, float]:
        """(a, b) with milliseconds = a + b x around ``x``."""
        if len(self.x) == 1:
            return self.ms[0], 0.0
        i = min(max(bisect_right(self.x, x) - 1, 0), len(self.x) - 2)
        b = (self.ms[i + 1] - self.ms[i]) / (self.x[i + 1] - self.x[i])
        return self.ms[i] - b * self.x[i], b

    def held(self, x: int) -> float:
        """Milliseconds at ``x``, or at the end of the curve nearest to it."""
        x = min(max(x, self.x[0]), self.x[-1])
        a, b = self.line(x)
        return a + b * x


Piece = tuple[float, float, int, str]
"""a + b KV milliseconds, resolution, what it was read from."""


@dataclass(frozen=True)
class Row:
    """The price of one batch over KV: piece ``i`` holds from KV sum ``starts[i]`` on; None is not looked at yet."""

    starts: list[int]
    pieces: list[Piece | None]


class DecodeSites:
    """Prices of decode passes.

    A batch that was measured follows its own curve. Another one lies between the nearest measured batches below and
    above whose curves cover the query, linearly: of a sweep that measured around the edges of captured graphs, at a
    rung and one above it, those are the two ends of the same rung. Where one side is missing, up to MOST_SITES sites
    within FARTHEST octaves count by the inverse of their distance. ``outside`` is the resolution of everything else,
    which is priced as the nearest measured point.
    """

    def __init__(self, points: Sequence[Point], outside: int) -> None:
        grouped: dict[int, list[tuple[int, float]]] = {}
        for batch, _, kv, ms in points:
            grouped.setdefault(batch, []).append((kv, ms))
        self.curves = {b: Curve(*map(list, zip(*sorted(grouped[b]), strict=True))) for b in sorted(grouped)}
        self.batches = list(self.curves)
        self.lowest = min(curve.x[0] for curve in self.curves.values())
        self.highest = max(curve.x[-1] for curve in self.curves.values())
        self._outside = outside
        self._rows: dict[int, Row] = {}
        self._floors: dict[int, float] = {}

    def floor(self, batch: int) -> float:
        """Milliseconds of a decode of so many requests at the lowest KV: a token each, or the first that is covered."""
        known = self._floors.get(batch)
        if known is None:
            measured = min(max(batch, self.batches[0]), self.batches[-1])
            lowest = max(batch, self.lowest)
            further = (kv for kv in self.row(measured).starts if kv > lowest)
            candidates = (kv for kv in (lowest, *further) if self.price(measured, kv)[1] >= INTERPOLATED)
            least = next(candidates, lowest)
            known = self._floors[batch] = self.price(measured, least)[0]
        return known

    def floors(self, batch: Ints) -> Any:
        """The same for an array."""
        batches, number = distinct(batch)
        return np.array([self.floor(b) for b in batches.tolist()])[number]

    def price(self, batch: int, kv: int) -> tuple[float, int]:
        """Milliseconds and resolution of one decode."""
        row = self._rows.get(batch) or self.row(batch)
        i = bisect_right(row.starts, kv) - 1
        a, b, resolution, _ = row.pieces[i] or self._look(batch, row, i)
        return a + b * kv, resolution

    def prices(self, batch: Ints, kv: Ints) -> tuple[Any, Any, Ints, list[str]]:
        """The same for arrays of at least one query, with what each was read from as an index into names."""
        batches, number = distinct(batch)
        rows = [self.row(b) for b in batches.tolist()]
        keys = np.concatenate([np.array(row.starts, np.int64) + (i << _BITS) for i, row in enumerate(rows)])
        first = np.cumsum([0, *(len(row.starts) for row in rows)])
        used, at = distinct(np.searchsorted(keys, (number << _BITS) + kv, side="right") - 1)
        of = np.searchsorted(first, used, side="right") - 1
        pieces = [
            rows[n].pieces[i] or self._look(b, rows[n], i)
            for n, b, i in zip(of.tolist(), batches[of].tolist(), (used - first[of]).tolist(), strict=True)
        ]
        a, b, resolution = (np.array([piece[field] for piece in pieces]) for field in range(3))
        names: dict[str, int] = {}
        told = np.array([names.setdefault(piece[3], len(names)) for piece in pieces], np.int64)
        return a[at] + b[at] * kv, resolution[at].astype(np.int8), told[at], list(names)

    def row(self, batch: int) -> Row:
        """The price of a batch, at any KV sum."""
        row = self._rows.get(batch)
        if row is None:
            own = self.curves.get(batch)
            starts = {0, self.lowest, self.highest + 1}
            if own is not None:
                starts |= {own.x[-1] + 1, *own.x, *(kv + 1 for kv in own.x)}
            for curve in self.curves.values():
                starts |= {kv for kv in (*curve.x, curve.x[-1] + 1) if own is None or not own.covers(kv)}
            row = self._rows[batch] = Row(sorted(starts), [None] * len(starts))
        return row

    def _look(self, batch: int, row: Row, i: int) -> Piece:
        piece = row.pieces[i] = self._piece(batch, row.starts[i])
        return piece

    def _piece(self, batch: int, kv: int) -> Piece:
        if self.batches[0] <= batch <= self.batches[-1] and self.lowest <= kv <= self.highest:
            weighted = self._around(batch, kv)
            if weighted:
                lines = [(w, self.curves[b].line(kv)) for b, w in weighted]
                exact = len(weighted) == 1 and weighted[0][0] == batch and kv in self.curves[batch].x
                return (
                    sum(w * a for w, (a, _) in lines),
                    sum(w * b for w, (_, b) in lines),
                    EXACT if exact else INTERPOLATED,
                    "decode " + "|".join(f"b{b}" for b, _ in weighted),
                )
        near = min(self.batches, key=lambda b: (_octaves(b, batch) + self._beyond(b, kv), b))
        curve = self.curves[near]
        line = curve.line(kv) if curve.covers(kv) else (curve.held(kv), 0.0)
        return *line, self._outside, f"decode b{near}"

    def _around(self, batch: int, kv: int) -> list[tuple[int, float]]:
        """Sites that cover a query, with their weights."""
        near = [b for b in self.batches if self.curves[b].covers(kv) and _octaves(b, batch) <= FARTHEST]
        if batch in near:
            return [(batch, 1.0)]
        below, above = [b for b in near if b < batch], [b for b in near if b > batch]
        if below and above:
            w = (batch - below[-1]) / (above[0] - below[-1])
            return [(below[-1], 1.0 - w), (above[0], w)]
        near = sorted(near, key=lambda b: (_octaves(b, batch), b))[:MOST_SITES]
        weights = [1.0 / _octaves(b, batch) for b in near]
        return [(b, w / sum(weights)) for b, w in zip(near, weights, strict=True)]

    def _beyond(self, batch: int, kv: int) -> float:
        curve = self.curves[batch]
        return _octaves(max(kv, 1), max(1, min(max(kv, curve.x[0]), curve.x[-1])))


def _octaves(left: int, right: int) -> float:
    return abs(log2(left / right))
