"""Prefill passes of a table: sites are (batch, KV read), each with a curve over the new tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.bundle.schema import RESOLUTIONS
from engine.timing.contract import Ints
from engine.timing.tables.decode import FARTHEST, MOST_SITES, Curve
from engine.timing.tables.layout import Point

CLAMPED, INTERPOLATED, EXACT = (RESOLUTIONS.index(name) for name in ("clamped", "interpolated", "exact"))
CHUNK = 4096
"""Queries that are held against all sites at a time: what is between stays in the cache."""
FLAT_DEVIATION, FLAT_OVERLAPS = 0.05, 3
"""A batch above all sites costs what the largest does if the two largest differ by no more than this, in the median,
at so many geometries at least."""
FLAT_KV_SHARE = 2.0
"""KV read per new token below which that may be said."""
_NOTHING = 2.0**-40
"""Stands for no KV at all on a logarithmic axis: far from every amount of it."""
_BITS = 40


class PrefillSites:
    """Prices of prefill passes.

    At a site, its own curve answers where it covers the query. Elsewhere up to MOST_SITES nearest sites within FARTHEST
    (the distance in octaves of batch and KV) whose own curves cover it are averaged by the inverse of the distance.
    ``outside`` is the resolution of everything else, which is priced as the nearest measured point.
    """

    def __init__(self, points: Sequence[Point], outside: int) -> None:
        grouped: dict[tuple[int, int], list[tuple[int, float]]] = {}
        for batch, tokens, kv, ms in points:
            grouped.setdefault((batch, kv), []).append((tokens, ms))
        self.keys = sorted(grouped)
        self.curves = [Curve(*map(list, zip(*sorted(grouped[key]), strict=True))) for key in self.keys]
        self.names = [f"prefill b{batch} kv{kv}" for batch, kv in self.keys]
        batches, kvs = np.array(self.keys, dtype=np.int64).T
        self._log_batch, self._log_kv = np.log2(batches), _log(kvs)
        self._least = np.array([curve.x[0] for curve in self.curves])
        self._most = np.array([curve.x[-1] for curve in self.curves])
        self.domain = (
            (int(batches.min()), int(batches.max())),
            (int(self._least.min()), int(self._most.max())),
            (int(kvs.min()), int(kvs.max())),
        )
        """Least and most of batch, new tokens, and KV read."""
        self._knots = np.concatenate([np.array(c.x, np.int64) + (i << _BITS) for i, c in enumerate(self.curves)])
        self._ms = np.concatenate([np.array(curve.ms) for curve in self.curves])
        self._last = np.cumsum([len(curve.x) for curve in self.curves]) - 1
        self._outside = outside
        self.flat = self._is_flat()
        """Whether the batch no longer matters at the largest ones."""

    def prices(self, batch: Ints, tokens: Ints, kv: Ints) -> tuple[Any, Any, Any]:
        """Milliseconds, resolution and nearest site of each query."""
        n = len(batch)
        ms, resolution, site = np.zeros(n), np.zeros(n, np.int8), np.zeros(n, np.int64)
        for at in range(0, n, CHUNK):
            here = slice(at, at + CHUNK)
            ms[here], resolution[here], site[here] = self._some(batch[here], tokens[here], kv[here])
        return ms, resolution, site

    def _some(self, batch: Ints, tokens: Ints, kv: Ints) -> tuple[Any, Any, Any]:
        (_, largest), *_ = self.domain
        above = (batch > largest) & (kv < FLAT_KV_SHARE * tokens) if self.flat else np.zeros(len(batch), bool)
        asked = np.where(above, largest, batch)
        inside = np.ones(len(batch), bool)
        clipped = []
        for value, (low, high) in zip((asked, tokens, kv), self.domain, strict=True):
            clipped.append(np.minimum(np.maximum(value, low), high))
            inside &= clipped[-1] == value
        away = self._distances(clipped[0], clipped[2])
        near = np.where((clipped[1][:, None] >= self._least) & (clipped[1][:, None] <= self._most), away, np.inf)
        count = min(MOST_SITES, len(self.keys))
        chosen = np.argpartition(near, count - 1, axis=1)[:, :count] if count < len(self.keys) else None
        if chosen is None:
            chosen = np.broadcast_to(np.arange(count), near.shape)
        chosen = np.take_along_axis(chosen, np.argsort(np.take_along_axis(near, chosen, 1), axis=1, kind="stable"), 1)
        distance = np.take_along_axis(near, chosen, 1)
        covered = distance[:, 0] <= FARTHEST
        at_site = distance[:, 0] == 0.0
        total, weights = np.zeros(len(batch)), np.zeros(len(batch))
        knot = np.zeros(len(batch), bool)
        for column in range(count):
            used = (distance[:, column] <= FARTHEST) & (~at_site | (column == 0))
            with np.errstate(divide="ignore"):
                weight = np.where(used, np.where(at_site, 1.0, 1.0 / distance[:, column]), 0.0)
            value, on_knot = self._read(chosen[:, column], clipped[1])
            total += weight * np.where(used, value, 0.0)
            weights += weight
            knot |= on_knot & at_site & (column == 0)
        ms = total / np.where(covered, weights, 1.0)
        site = chosen[:, 0].copy()
        lost = np.flatnonzero(~covered)
        if len(lost):
            ms[lost], site[lost] = self._nearest(away[lost], clipped[1][lost])
        best = np.where(knot, EXACT, INTERPOLATED)
        best = np.where(above, CLAMPED, best)
        return ms, np.where(inside & covered, best, self._outside).astype(np.int8), site

    def _distances(self, batch: Ints, kv: Ints) -> Any:
        """Octaves from each query to each site."""
        across = np.log2(batch)[:, None] - self._log_batch
        along = _log(kv)[:, None] - self._log_kv
        return np.sqrt(across * across + along * along)

    def _nearest(self, away: Any, tokens: Ints) -> tuple[Any, Any]:
        """The nearest measured point of queries that no near curve covers."""
        held = np.minimum(np.maximum(tokens[:, None], self._least), self._most)
        site = np.argmin(away + np.abs(np.log2(held) - np.log2(tokens)[:, None]), axis=1)
        return self._read(site, held[np.arange(len(site)), site])[0], site

    def _read(self, site: Any, tokens: Any) -> tuple[Any, Any]:
        """Milliseconds of curves at tokens that they cover, and whether a pass was measured at them."""
        i = np.searchsorted(self._knots, (site.astype(np.int64) << _BITS) + tokens, side="right") - 1
        i = np.maximum(i, 0)
        j = np.minimum(i + 1, self._last[site])
        x0, x1 = self._knots[i] - (site << _BITS), self._knots[j] - (site << _BITS)
        share = (tokens - x0) / np.maximum(x1 - x0, 1)
        return self._ms[i] + (self._ms[j] - self._ms[i]) * share, x0 == tokens

    def _is_flat(self) -> bool:
        batches = sorted({batch for batch, _ in self.keys})
        if len(batches) < 2:
            return False
        below, largest = (
            {kv: curve for (b, kv), curve in zip(self.keys, self.curves, strict=True) if b == at} for at in batches[-2:]
        )
        off = [
            abs(ms / below[kv].held(x) - 1.0)
            for kv, curve in largest.items()
            if kv in below
            for x, ms in zip(curve.x, curve.ms, strict=True)
            if below[kv].covers(x)
        ]
        return len(off) >= FLAT_OVERLAPS and float(np.median(off)) <= FLAT_DEVIATION


def _log(kv: Any) -> Any:
    return np.log2(np.maximum(kv, _NOTHING))
