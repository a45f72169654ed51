"""The nearest recorded passes of whole arrays of batches: what :class:`Neighbours` says of each, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log1p

import numpy as np
import numpy.typing as npt

from engine.timing.compact import distinct
from engine.timing.contract import Ints
from engine.timing.neighbours import EXACT_PASSES, FEW, LOOK_AROUND, Floats, Neighbours

CHUNK = 1 << 11
"""Queries at a time: their distances to all candidates stay in the cache."""
NARROW = 12
"""Up to so many candidates, sorting them is cheaper than looking for the least again and again."""
EXTRAS = EXACT_PASSES - 1
"""Most passes that batches which are too small by themselves bring along."""
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Nearest:
    """Of n queries: the ``rows`` (n x FEW, in the order of geometries) of the ``count`` nearest passes, nearest first.

    ``inside`` what was measured of the batch or not. ``equal`` passes from row ``first_equal`` on have this geometry.
    """

    rows: Ints
    count: Ints
    inside: Bools
    equal: Ints
    first_equal: Ints


@dataclass(frozen=True, slots=True)
class _Batches:
    """Of each batch that is asked for, where its candidates lie.

    All rows of ``extras`` (-1: none), and those of one batch from ``first`` to ``last`` that stand around the query.
    ``apart`` are their distances in requests: of the extras, then of that batch. ``own`` is the number of the batch
    itself, -1 where it was not measured; ``whole``: it needs no other. ``line``: its passes differ in decode KV alone.
    """

    extras: Ints
    first: Ints
    last: Ints
    apart: Floats
    own: Ints
    whole: Bools
    line: Bools
    count: Ints


_Batch = tuple[tuple[int, ...], int, int, tuple[float, ...], int, bool, bool, int]
"""One of :class:`_Batches`."""


class Search:
    """The search among recorded passes, for arrays."""

    def __init__(self, known: Neighbours) -> None:
        self._known = known
        self._tokens, self._kv, self._decode_kv = (np.ascontiguousarray(axis) for axis in known.axes.T)
        beyond = np.full((2 * LOOK_AROUND, 3), np.inf)  # so that there is a full window from each row on
        self._points = np.ascontiguousarray(np.concatenate([known.coordinates[:, [1, 2, 4]], beyond]).T)
        begins = np.append(True, (known.axes[1:] != known.axes[:-1]).any(axis=1))
        begins[known.bounds[:-1]] = True
        alike = np.diff(np.append(np.flatnonzero(begins), len(begins)))
        self._alike = np.repeat(alike, alike)
        """How many passes have the geometry of each row."""
        self._of_batch: dict[tuple[int, int], _Batch] = {}

    def nearest(self, asked: Ints) -> Nearest:
        """What was measured nearest to each row of ``asked`` (n x 5)."""
        n = len(asked)
        rows = np.zeros((n, FEW), np.int64)
        batches, batch = self._batches(asked)
        first, last = batches.first[batch], batches.last[batch]
        tokens, kv, decode_kv = np.ascontiguousarray(asked[:, [1, 2, 4]].T)

        def before(row: Ints, some: slice) -> Bools:
            t, k = self._tokens[row], self._kv[row]
            same_tokens = (k < kv[some]) | ((k == kv[some]) & (self._decode_kv[row] < decode_kv[some]))
            return np.asarray((t < tokens[some]) | ((t == tokens[some]) & same_tokens))

        low = _bisect(first, last, before)
        there = np.minimum(low, len(self._tokens) - 1)
        alike = (low < last) & (self._tokens[there] == tokens)
        alike &= (self._kv[there] == kv) & (self._decode_kv[there] == decode_kv)
        # A batch of its own with so few passes that others stand in has fewer of one geometry than count.
        equal = np.where(alike & batches.whole[batch], self._alike[there], 0)
        own = batches.own[batch]
        least, most = self._known.least[own], self._known.most[own]
        inside = own >= 0
        for axis, values in enumerate((tokens, kv, decode_kv)):
            inside &= (least[:, axis] <= values) & (values <= most[:, axis])
        line = batches.line[batch]
        asked_for = equal < EXACT_PASSES
        some = np.flatnonzero(line & asked_for)
        rows[some] = self._along_the_line(first[some], last[some], decode_kv[some])
        some = np.flatnonzero(~line & asked_for)
        rows[some] = self._around(batches, batch[some], low[some], asked[some])
        return Nearest(np.minimum(rows, len(self._tokens) - 1), batches.count[batch], inside, equal, there)

    def _batches(self, asked: Ints) -> tuple[_Batches, Ints]:
        decodes, number = distinct(asked[:, 3])
        pairs, batch = distinct(asked[:, 0] * len(decodes) + number)
        of = zip((pairs // len(decodes)).tolist(), decodes[pairs % len(decodes)].tolist(), strict=True)
        found = [self._of_batch.get(pair) or self._one_batch(*pair) for pair in of]
        extras, first, last, apart, own, whole, line, count = (np.array(values) for values in zip(*found, strict=True))
        return _Batches(extras, first, last, apart, own, whole, line, count), batch

    def _one_batch(self, prompts: int, decodes: int) -> _Batch:
        buckets, same = self._known.buckets(prompts, decodes)
        bounds = self._known.bounds.tolist()
        sizes = {bucket: bounds[bucket + 1] - bounds[bucket] for bucket in buckets}
        few: list[int] = []
        for main in buckets:
            if len(few) + sizes[main] >= EXACT_PASSES or main == buckets[-1]:
                break
            few += range(bounds[main], bounds[main + 1])
        count = min(FEW, max(EXACT_PASSES, sizes[buckets[0]]), len(few) + sizes[main])
        at = np.log1p(np.array([prompts, decodes]) / self._known.typical[[0, 3]])
        away = np.abs(self._known.coordinates[[*few, bounds[main]]][:, [0, 3]] - at)
        *before, apart = (away[:, 0] + away[:, 1]).tolist()
        missing = EXTRAS - len(few)
        whole = same and not few
        answer = self._of_batch[prompts, decodes] = (
            (*few, *[-1] * missing),
            bounds[main],
            bounds[main + 1],
            (*before, *[0.0] * missing, apart),
            buckets[0] if same else -1,
            whole,
            whole and not prompts and sizes[main] >= FEW,
            count,
        )
        return answer

    def _along_the_line(self, first: Ints, last: Ints, decode_kv: Ints) -> Ints:
        values, number = distinct(decode_kv)
        # By the scalar logarithm, as the search for one batch: the last bit decides on which side of equals it stands.
        logs = np.fromiter(map(log1p, (values / self._known.typical[4]).tolist()), np.float64, len(values))
        at = logs[number]
        place = _bisect(first, last, lambda row, some: self._points[2, row] < at[some])
        begin, end = np.maximum(first, place - FEW), np.minimum(last, place + FEW)
        rows = np.empty((len(at), FEW), np.int64)
        for some in _chunks(len(at)):
            away = self._apart(2, begin[some], 2 * FEW, at[some])
            away[np.arange(2 * FEW) >= (end - begin)[some, None]] = np.inf
            rows[some] = begin[some, None] + _least(away)
        return rows

    def _around(self, batches: _Batches, batch: Ints, low: Ints, asked: Ints) -> Ints:
        begin = np.maximum(batches.first[batch], low - LOOK_AROUND)
        width = np.minimum(batches.last[batch], low + LOOK_AROUND) - begin
        few = (batches.extras >= 0).sum(axis=1)[batch]
        # As many candidates at a time: of other batches, and in a row.
        order = np.argsort((few * (2 * LOOK_AROUND + 1) + width).astype(np.int16), kind="stable")
        rows = np.empty((len(batch), FEW), np.int64)
        for chunk in _chunks(len(batch)):
            for extra in np.unique(few[order[chunk]]).tolist():
                some = order[chunk][few[order[chunk]] == extra]
                rows[some] = self._of_width(batches, batch[some], begin[some], width[some], extra, asked[some])
        return rows

    def _of_width(self, batches: _Batches, batch: Ints, begin: Ints, width: Ints, extra: int, asked: Ints) -> Ints:
        """The nearest among ``extra`` passes of other batches and about ``width`` in a row."""
        points = np.log1p(asked[:, [1, 2, 4]].T / self._known.typical[[1, 2, 4], None])
        most, apart = max(FEW, int(width.max())), batches.apart[batch]
        away = self._apart(0, begin, most, points[0])
        away += self._apart(1, begin, most, points[1])
        away += self._apart(2, begin, most, points[2])
        away += apart[:, -1:]
        if width.min() < most:
            away[np.arange(most) >= width[:, None]] = np.inf
        for n in reversed(range(extra)):
            row = batches.extras[batch, n]
            tokens, kv, decode_kv = (np.abs(axis[row] - at) for axis, at in zip(self._points, points, strict=True))
            away = np.insert(away, 0, (tokens + kv + decode_kv) + apart[:, n], axis=1)
        found = _least(away)
        rows = begin[:, None] + found - extra
        for n in range(extra):
            rows = np.where(found == n, batches.extras[batch, n, None], rows)
        return rows

    def _apart(self, axis: int, begin: Ints, width: int, at: Floats) -> Floats:
        """Distances on an axis of ``width`` rows from each ``begin`` on."""
        windows = np.lib.stride_tricks.sliding_window_view(self._points[axis], width)
        away = windows[begin]
        away -= at[:, None]
        return np.abs(away, out=away)


def _bisect(first: Ints, last: Ints, before: Callable[[Ints, slice], Bools]) -> Ints:
    """Of each query the first row from ``first`` on that is not before it, else ``last``."""
    found = np.empty(len(first), np.int64)
    for some in _chunks(len(first), 4 * CHUNK):
        low, high = first[some].copy(), last[some].copy()
        for _ in range(int((high - low).max()).bit_length()):
            middle = (low + high) >> 1
            less = before(np.minimum(middle, high - 1), some) & (low < high)
            low = np.where(less, middle + 1, low)
            high = np.where(less, high, middle)
        found[some] = low
    return found


def _least(away: Floats) -> Ints:
    """Where in each row the FEW least stand; of equals, the one before."""
    if away.shape[1] <= NARROW:
        return np.asarray(np.argsort(away, axis=1, kind="stable")[:, :FEW])
    every, found = np.arange(len(away)), np.empty((len(away), FEW), np.int64)
    for n in range(FEW):
        found[:, n] = at = np.argmin(away, axis=1)
        away[every, at] = np.inf
    return found


def _chunks(n: int, size: int = CHUNK) -> list[slice]:
    return [slice(at, min(n, at + size)) for at in range(0, n, size)]
