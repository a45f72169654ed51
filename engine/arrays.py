"""Arrow arrays from numpy ones and lists of text.

``pa.array`` and ``pa.table`` import pandas wherever it is installed, which costs more than many a command does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_TYPES = {
    np.dtype(np.int64): pa.int64(),
    np.dtype(np.int32): pa.int32(),
    np.dtype(np.uint64): pa.uint64(),
    np.dtype(np.float64): pa.float64(),
}


def numbers(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """An array over int64, int32, uint64, float64 or bool values, not copied; NULL where not ``valid``."""
    values = np.ascontiguousarray(values)
    if values.dtype == np.bool_:
        return pa.Array.from_buffers(pa.bool_(), len(values), [_bits(valid), _bits(values)])
    return pa.Array.from_buffers(_TYPES[values.dtype], len(values), [_bits(valid), pa.py_buffer(values)])


def texts(values: Sequence[str | None]) -> pa.Array:
    """A string array; NULL where None."""
    valid = np.array([v is not None for v in values], np.bool_) if None in values else None
    known: Sequence[str] = values if valid is None else [v or "" for v in values]  # type: ignore[assignment]
    together = "".join(known)
    data = together.encode()
    one_byte_each = len(data) == len(together)
    lengths = np.fromiter(map(len, known if one_byte_each else [v.encode() for v in known]), np.int32, len(known))
    offsets = np.zeros(len(known) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(pa.string(), len(known), [_bits(valid), pa.py_buffer(offsets), pa.py_buffer(data)])


def coded(codes: npt.NDArray[Any], names: Sequence[str]) -> pa.DictionaryArray:
    """Repeating text: ``names[code]`` for each code, NULL where it is negative."""
    codes = np.ascontiguousarray(codes, np.int32)
    valid = None if (codes >= 0).all() else codes >= 0
    return pa.DictionaryArray.from_arrays(numbers(np.maximum(codes, 0), valid), texts(names))


def lists(offsets: npt.NDArray[Any], items: pa.Array, valid: npt.NDArray[np.bool_] | None = None) -> pa.ListArray:
    """Lists over ``items``: list i is ``items[offsets[i]:offsets[i + 1]]``; NULL where not ``valid``."""
    offsets = np.ascontiguousarray(offsets, np.int32)
    buffers = [_bits(valid), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(pa.list_(items.type), len(offsets) - 1, buffers, children=[items])


def _bits(flags: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    return None if flags is None else pa.py_buffer(np.packbits(flags, bitorder="little"))


def flags(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Where a column has a value."""
    bits = column.buffers()[0]
    if bits is None:
        return np.ones(len(column), np.bool_)
    ones = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return ones[column.offset : column.offset + len(column)].astype(np.bool_)


def filled(column: pa.Array, null: int = 0) -> npt.NDArray[Any]:
    """The values of a column of int64 or int32, ``null`` where there is none."""
    data = column.buffers()[1]
    dtype = np.dtype(np.int32 if pa.types.is_int32(column.type) else np.int64)
    if data is None or not len(column):
        return np.full(len(column), null, dtype)
    values = np.frombuffer(data, dtype)[column.offset : column.offset + len(column)]
    return np.where(flags(column), values, null) if column.null_count else values


def offsets(column: pa.Array) -> npt.NDArray[np.int32]:
    """Where the lists or texts of a column begin, and where the last one ends."""
    data = column.buffers()[1]
    if data is None:
        return np.zeros(len(column) + 1, np.int32)
    return np.frombuffer(data, np.int32)[column.offset : column.offset + len(column) + 1]


def python_values(column: pa.Array) -> list[Any]:
    """The values of a column of numbers or texts, None where there is none; equal texts are one object."""
    if column.null_count == len(column):
        return [None] * len(column)
    if pa.types.is_string(column.type):
        encoded = column.dictionary_encode()
        names = [*encoded.dictionary.to_pylist(), None]
        return [names[code] for code in filled(encoded.indices, -1).tolist()]
    values: list[Any] = filled(column).tolist()
    if not column.null_count:
        return values
    return [value if there else None for value, there in zip(values, flags(column).tolist(), strict=True)]
