"""What distinct values an array has, and where; fast where they are small."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.timing.contract import Ints

SMALL = 1 << 22
"""Up to this value a table of all of them is cheaper than sorting."""


def distinct(values: Any) -> tuple[Ints, Ints]:
    """The distinct values of an array, ascending, and for each element which of them it is: as ``np.unique`` says."""
    if not len(values):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    low, high = int(values.min()), int(values.max())
    if high - low >= SMALL or high - low > 16 * len(values) + 1024:
        found, where = np.unique(values, return_inverse=True)
        return found.astype(np.int64), where.reshape(-1)
    shifted = values - low
    there = np.zeros(high - low + 1, dtype=bool)
    there[shifted] = True
    found = np.flatnonzero(there)
    number = np.empty(len(there), dtype=np.int64)
    number[found] = np.arange(len(found))
    return found + low, number[shifted]


def pair_names(left: Ints, left_names: list[str], right: Ints, right_names: list[str]) -> tuple[Any, tuple[str, ...]]:
    """One index per pass into the names of the pairs that occur; -1 on a side is nothing there."""
    width = len(right_names) + 1
    codes, where = distinct((left + 1) * width + right + 1)
    told = []
    for code in codes.tolist():
        a, b = divmod(code, width)
        told.append(" + ".join(([left_names[a - 1]] if a else []) + ([right_names[b - 1]] if b else [])))
    return where.astype(np.int32), tuple(told)
