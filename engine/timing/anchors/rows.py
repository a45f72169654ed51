"""Decode steps of one batch as straight pieces over the context, and those of many batches as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from engine.bundle.schema import RESOLUTIONS

INTERPOLATED, EXACT = (RESOLUTIONS.index(name) for name in ("interpolated", "exact"))


class Row(NamedTuple):
    """Milliseconds of one batch: ``max(at + slope c, least) (ratio + bend c)`` from each knot of the context c on.

    ``c`` is first brought into ``held``. ``resolution`` is that of the context ``exact``; within ``inside`` it is at
    best *interpolated*, elsewhere at best ``beyond``. ``site`` says what the row was read from.
    """

    at: tuple[float, ...]
    slope: tuple[float, ...]
    ratio: tuple[float, ...]
    bend: tuple[float, ...]
    least: float
    held: tuple[float, float]
    inside: tuple[float, float]
    exact: float
    resolution: int
    beyond: int
    site: str


class RowTable:
    """Rows of several batches as arrays, a query answered by its row and its context."""

    def __init__(self, rows: Sequence[Row | None], knots: int) -> None:
        flat, nowhere = (0.0,) * knots, (0.0, 0.0)
        nothing = Row(flat, flat, (1.0,) * knots, flat, 0.0, nowhere, nowhere, 0.0, EXACT, EXACT, "")
        filled = [nothing if row is None else row for row in rows]
        self.names = [row.site for row in filled]
        pieces = np.array([[row.at, row.slope, row.ratio, row.bend] for row in filled], np.float64)
        self._at, self._slope, self._ratio, self._bend = (
            np.ascontiguousarray(pieces[:, i]).reshape(-1) for i in range(4)
        )
        self._width = knots
        bounds = np.array([(row.least, *row.held, *row.inside, row.exact) for row in filled], np.float64).T
        self._least, self._low, self._high, self._from, self._to, self._exact = map(np.ascontiguousarray, bounds)
        marks = np.array([(row.resolution, row.beyond) for row in filled], np.int8).T
        self._best, self._beyond = map(np.ascontiguousarray, marks)

    def price(self, where: Any, context: Any, knots: Any) -> tuple[Any, Any]:
        """Milliseconds and resolutions."""
        c = np.minimum(np.maximum(context, self._low[where]), self._high[where])
        i = where * self._width
        if self._width > 1:
            i = i + np.searchsorted(knots, c, side="right") - 1
        ms = np.maximum(self._at[i] + self._slope[i] * c, self._least[where]) * (self._ratio[i] + self._bend[i] * c)
        best = self._best[where]
        inside = (context >= self._from[where]) & (context <= self._to[where])
        elsewhere = np.minimum(best, np.where(inside, np.int8(INTERPOLATED), self._beyond[where]))
        return ms, np.where(context == self._exact[where], best, elsewhere)
