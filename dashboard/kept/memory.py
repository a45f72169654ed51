"""Answers that are kept while they fit: a bounded number of bytes for all sessions of a server together."""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from threading import RLock
from typing import Any

import numpy as np
import pyarrow as pa

BYTES = 600 * 2**20
MOST = 5_000
_LOOKED_AT = 100
"""Members of a long list that are looked at to tell the size of all."""


class Kept:
    """Values by key; the least recently used go first. Safe to use from threads: each value is made by one of them."""

    def __init__(self, most_bytes: int = BYTES, most: int = MOST) -> None:
        self.most_bytes, self.most, self.bytes = most_bytes, most, 0
        self._values: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
        self._making: dict[Any, RLock] = {}
        self._lock = RLock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        """The value under ``key``, or what ``make()`` gives, kept unless it alone is too large."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][0]
            turn = self._making.setdefault(key, RLock())
        with turn:
            with self._lock:
                if key in self._values:
                    return self._values[key][0]
            try:
                value = make()
                self._put(key, value)
            finally:
                with self._lock:
                    self._making.pop(key, None)
        return value

    def _put(self, key: Any, value: Any) -> None:
        size = size_of(value)
        if size > self.most_bytes:
            return
        with self._lock:
            if key in self._values:
                self.bytes -= self._values[key][1]
            self._values[key] = (value, size)
            self.bytes += size
            while self.bytes > self.most_bytes or len(self._values) > self.most:
                _, (_, gone) = self._values.popitem(last=False)
                self.bytes -= gone


def size_of(value: Any) -> int:
    """About how many bytes a value holds: arrays and tables exactly, long lists by their first members."""
    if isinstance(value, np.ndarray):
        whole = value.base if isinstance(value.base, np.ndarray) else value  # a slice keeps all of its array alive
        return int(whole.nbytes) + (_of_many(value.tolist()) if value.dtype == object else 0)
    if isinstance(value, (pa.Table, pa.RecordBatch, pa.ChunkedArray, pa.Array)):
        return int(value.get_total_buffer_size())
    if isinstance(value, Mapping):
        return sys.getsizeof(value) + _of_many([*value.keys(), *value.values()])
    if isinstance(value, (list, tuple, set, frozenset)):
        return sys.getsizeof(value) + _of_many(list(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return sum(size_of(getattr(value, field.name)) for field in dataclasses.fields(value))
    if hasattr(value, "__dict__"):
        return sum(size_of(one) for one in vars(value).values() if isinstance(one, (np.ndarray, list, dict)))
    return sys.getsizeof(value)


def _of_many(values: list[Any]) -> int:
    if len(values) <= _LOOKED_AT:
        return sum(map(size_of, values))
    step = len(values) // _LOOKED_AT
    looked = values[::step]
    return sum(map(size_of, looked)) * len(values) // len(looked)
