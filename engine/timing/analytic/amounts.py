"""Arithmetic on one pass or on many: every amount is a float, or an array of float64 with an element per pass.

Only operations that IEEE 754 rounds alike in both are used (no powers, no exponentials), so that the answer for one
pass equals that for an array of passes bit by bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Amount = Any
"""A float, or an array of float64."""


def larger(a: Amount, b: Amount) -> Amount:
    """The larger of two, element by element."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.maximum(a, b)
    return a if a >= b else b


def smaller(a: Amount, b: Amount) -> Amount:
    """The smaller of two, element by element."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.minimum(a, b)
    return a if a <= b else b


class Steps:
    """A function of a whole number that stands still from its last value on, kept as its values from 0."""

    def __init__(self, values: npt.NDArray[np.float64]) -> None:
        self._array = values
        self._values = values.tolist()
        self.last = len(values) - 1

    def __call__(self, at: Amount) -> Amount:
        """Its value at whole numbers ``at``."""
        if isinstance(at, np.ndarray):
            return self._array[np.minimum(at, self.last).astype(np.int64)]
        return self._values[int(at) if at < self.last else self.last]
