"""Measured passes that are nearest to a batch in shape."""

from __future__ import annotations

from bisect import bisect_left
from math import log1p

import numpy as np
import numpy.typing as npt

from engine.timing.contract import Ints

FEW = 5
"""Nearest passes whose median is taken, so that one odd pass is not the price of others."""
EXACT_PASSES = 3
"""Passes of one geometry from which their own median counts as measured."""
LOOK_AROUND = 32
"""Passes to either side, in order of their tokens, among which the nearest are looked for."""

Floats = npt.NDArray[np.float64]
Geometry = tuple[int, int, int, int, int]
"""Prefill requests, new tokens, prefill KV tokens, decode requests, decode KV tokens."""


class Neighbours:
    """Recorded passes by batch (prefill and decode requests), and within one by new tokens, prefill KV and decode KV.

    Distances are sums over the axes of the differences of log(1 + x / typical), where typical is the median of that
    axis over the passes that have any: linear for small, relative for large values, without a unit.

    In the ``order`` of their geometries (places in the recording) the passes have ``axes`` (new tokens, prefill KV,
    decode KV) and ``coordinates``; those of batch b stand from ``bounds[b]`` to ``bounds[b + 1]``.
    """

    def __init__(self, geometry: Ints) -> None:
        typical = [np.median(axis[axis > 0]) if (axis > 0).any() else 1.0 for axis in geometry.T]
        self.typical, self._typical_kv = np.array(typical), float(typical[4])
        self.order = np.lexsort((*geometry[:, [4, 2, 1]].T, geometry[:, 3], geometry[:, 0]))
        ordered = geometry[self.order]
        self.axes = ordered[:, [1, 2, 4]]
        self.coordinates = np.log1p(ordered / self.typical)
        batches = ordered[:, [0, 3]]
        first = np.flatnonzero(np.append(True, (batches[1:] != batches[:-1]).any(axis=1)))
        self.bounds = np.append(first, len(ordered))
        self._batches = batches[first]
        self.names = tuple(f"batch of {prefills} prefill, {decodes} decode" for prefills, decodes in self._batches)
        numbers = np.empty(len(ordered), np.int64)
        numbers[self.order] = np.repeat(np.arange(len(first)), np.diff(self.bounds))
        self.bucket_of: list[int] = numbers.tolist()
        self.least = np.minimum.reduceat(self.axes, first)
        self.most = np.maximum.reduceat(self.axes, first)
        self._lines: dict[int, tuple[list[float], list[int]]] = {}
        self._like: dict[tuple[int, int], tuple[list[int], bool]] = {}

    def few(self, shape: Geometry) -> tuple[list[int], bool]:
        """The places of the FEW nearest passes, and whether the query lies within what was measured of its batch.

        They are of the nearest batch of the class; where that has less than EXACT_PASSES, so many with the next ones.
        """
        buckets, same = self.buckets(shape[0], shape[3])
        wanted = (shape[1], shape[2], shape[4])
        if same and not shape[0] and (near := self._along_the_line(buckets[0], shape[4])):
            return near, self._inside(buckets[0], wanted)
        found: list[Ints] = []
        total = 0
        for bucket in buckets:
            rows = self._around(bucket, wanted)
            found.append(rows)
            total += len(rows)
            if total >= EXACT_PASSES:
                break
        rows, count = np.concatenate(found), min(FEW, max(EXACT_PASSES, len(found[0])))
        away = _away(self.coordinates[rows], np.log1p(np.array(shape) / self.typical))
        chosen = rows[np.argsort(away, kind="stable")[:count]]
        return self.order[chosen].tolist(), same and self._inside(buckets[0], wanted)

    def _along_the_line(self, bucket: int, decode_kv_tokens: int) -> list[int]:
        """The nearest of a batch that only decodes, hence differs in one axis; none where there are too few.

        Most passes are such, so this goes without arrays.
        """
        first, last = self.bounds[bucket : bucket + 2].tolist()
        if last - first < FEW:
            return []
        line = self._lines.get(bucket)
        if line is None:
            line = self._lines[bucket] = (self.coordinates[first:last, 4].tolist(), self.order[first:last].tolist())
        coordinates, places = line
        at = log1p(decode_kv_tokens / self._typical_kv)
        place = bisect_left(coordinates, at)
        around = range(max(0, place - FEW), min(len(coordinates), place + FEW))
        return [places[n] for n in sorted(around, key=lambda n: abs(coordinates[n] - at))[:FEW]]

    def buckets(self, prefills: int, decodes: int) -> tuple[list[int], bool]:
        """Batches of the class from the nearest on, and whether the nearest is the one asked for.

        Where no pass of the class was measured, those of all classes.
        """
        known = self._like.get((prefills, decodes))
        if known is None:
            own = ((self._batches > 0) == [prefills > 0, decodes > 0]).all(axis=1)
            among = np.flatnonzero(own) if own.any() else np.arange(len(self._batches))
            away = np.abs(np.log1p(self._batches[among]) - np.log1p([prefills, decodes])).sum(axis=1)
            buckets = among[np.argsort(away, kind="stable")]
            same = bool((self._batches[buckets[0]] == [prefills, decodes]).all())
            known = self._like[prefills, decodes] = buckets.tolist(), same
        return known

    def _around(self, bucket: int, wanted: tuple[int, int, int]) -> Ints:
        """Rows of a batch around the place where the query would stand."""
        first, last = (int(bound) for bound in self.bounds[bucket : bucket + 2])
        low, high = first, last
        for axis, value in enumerate(wanted):
            column = self.axes[low:high, axis]
            begin = low
            low, high = (
                begin + int(np.searchsorted(column, value)),
                begin + int(np.searchsorted(column, value, "right")),
            )
            if low == high:
                break
        return np.arange(max(first, low - LOOK_AROUND), min(last, low + LOOK_AROUND))

    def _inside(self, bucket: int, wanted: tuple[int, int, int]) -> bool:
        bounds = zip(self.least[bucket].tolist(), wanted, self.most[bucket].tolist(), strict=True)
        return all(low <= value <= high for low, value, high in bounds)


def _away(coordinates: Floats, at: Floats) -> Floats:
    """Distances of rows; in the order in which :mod:`engine.timing.nearest` adds, so that both say the same."""
    p, t, k, d, c = np.abs(coordinates - at).T
    return np.asarray((t + k + c) + (p + d))
