"""Many numbers of one figure, on disk but for the last of them."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_HELD = 8_192


class Column:
    """Floats in the order in which they came; ``numpy.asarray`` reads them back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: array[float] = array("d")
        self._written = 0

    def append(self, value: float) -> None:
        """Take a number."""
        self._held.append(value)
        if len(self._held) == _HELD:
            with self._path.open("ab") as file:
                self._held.tofile(file)
            self._written += _HELD
            self._held = array("d")

    def __len__(self) -> int:
        return self._written + len(self._held)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[np.float64]:
        held = np.array(self._held, np.float64)
        if not self._written:
            return held
        return np.concatenate([np.fromfile(self._path, np.float64), held])
