"""Small steps on whole columns of numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.serving.contract import Columns

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def flat(names: tuple[str, ...], values: list[int]) -> Columns:
    """Rows laid end to end as named columns."""
    table = np.array(values, np.int64).reshape(-1, len(names))
    return {name: np.ascontiguousarray(table[:, position]) for position, name in enumerate(names)}


def ceil_div(values: Ints, divisor: int) -> Ints:
    """Quotients rounded up: whole blocks that hold so many tokens."""
    return -(-values // divisor)


def ranges(counts: Ints) -> Ints:
    """0, 1, ... below each count, one range after another."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) - np.repeat(ends - counts, counts)


def add_up(at: Ints, values: Ints | int, length: int) -> Ints:
    """An array of so many sums: ``values`` added at the positions ``at``."""
    column = np.zeros(length, np.int64)
    np.add.at(column, at, values)
    return column
