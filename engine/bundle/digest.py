"""Content digest of a table: a SHA-256 over logical values.

How a table is cut into batches, the order of a dictionary's entries and the Parquet encoder leave no trace in
it; any changed, added, removed or reordered value or NULL does. A column without a single value counts as
absent, so that a later schema may gain optional columns without renaming the runs that lack them.

The encoding of a column, part by part (each part is one running hash, so batches may end anywhere):

* every column: one byte per row, 1 where there is a value;
* numbers: little-endian values, 0 where NULL; -0.0 counts as 0.0 and every NaN as one;
* text: the lengths in bytes (int64) and the bytes;
* dictionary text: int64 codes numbered by first appearance, then the entries in that order as text;
* lists: the lengths (int64) and the flattened items as a column; structs: each field as a column.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from engine.arrays import numbers, texts

_EMPTY = texts([""])[0]


class TableDigest:
    """Running digest of batches that all have ``schema``."""

    def __init__(self, schema: pa.Schema) -> None:
        self._names = list(schema.names)
        self._columns = [_column(schema.field(i).type) for i in range(len(schema))]
        self.rows = 0

    def update(self, batch: pa.RecordBatch) -> None:
        """Take the next rows."""
        for column, values in zip(self._columns, batch.columns, strict=True):
            column.update(values)
        self.rows += batch.num_rows

    def columns_with_values(self) -> list[str]:
        """Names of the columns that are not all NULL so far."""
        return [name for name, column in zip(self._names, self._columns, strict=True) if column.has_values]

    def hexdigest(self) -> str:
        """64 hex digits; the digest may still be updated afterwards."""
        columns = [
            [name, column.type_name, column.hexdigest()]
            for name, column in zip(self._names, self._columns, strict=True)
            if column.has_values
        ]
        return hashlib.sha256(json.dumps([self.rows, columns]).encode()).hexdigest()


def table_digest(table: pa.Table) -> str:
    """Content digest of a whole table whose types are those of a bundle's schema."""
    digest = TableDigest(table.schema)
    for batch in table.to_batches():
        digest.update(batch)
    return digest.hexdigest()


class _Column:
    """One column: a hash per part, and whether any row had a value."""

    def __init__(self, type_name: str, parts: int) -> None:
        self.type_name = type_name
        self.has_values = False
        self._valid = hashlib.sha256()
        self._parts = [hashlib.sha256() for _ in range(parts)]

    def update(self, array: pa.Array) -> None:
        if array.null_count == len(array):
            self._valid.update(bytes(len(array)))
            self._update_nulls(len(array))
            return
        self.has_values = True
        self._valid.update(b"\x01" * len(array) if not array.null_count else _bytes(pc.is_valid(array)).data)
        self._update_values(array)

    def _update_values(self, array: pa.Array) -> None:
        raise NotImplementedError

    def _update_nulls(self, rows: int) -> None:
        raise NotImplementedError

    def _children(self) -> list[str]:
        return []

    def hexdigest(self) -> str:
        parts = [self._valid.hexdigest(), *(p.hexdigest() for p in self._parts), *self._children()]
        return hashlib.sha256("".join(parts).encode()).hexdigest()


class _Numbers(_Column):
    def __init__(self, type_name: str, dtype: str) -> None:
        super().__init__(type_name, 1)
        self._dtype = np.dtype(dtype).newbyteorder("<")

    def _update_values(self, array: pa.Array) -> None:
        if pa.types.is_boolean(array.type):
            array = pc.cast(array, pa.uint8())
        values = fixed_values(array, self._dtype)
        if self._dtype.kind == "f":
            values = np.where(np.isnan(values), np.nan, values + 0.0)
        self._parts[0].update(values.data)

    def _update_nulls(self, rows: int) -> None:
        self._parts[0].update(bytes(rows * self._dtype.itemsize))


class _Text(_Column):
    def __init__(self) -> None:
        super().__init__("text", 2)

    def _update_values(self, array: pa.Array) -> None:
        self._parts[0].update(_lengths(pc.binary_length(array)).data)
        if array.null_count:
            array = pc.coalesce(array, _EMPTY)
        _, offsets, data = array.buffers()
        bounds = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
        if data is not None:
            self._parts[1].update(memoryview(data)[bounds[0] : bounds[-1]])

    def _update_nulls(self, rows: int) -> None:
        self._parts[0].update(bytes(8 * rows))


class _Dictionary(_Column):
    def __init__(self) -> None:
        super().__init__("dictionary text", 1)
        self._codes: dict[str | None, int] = {}

    def update(self, array: pa.Array) -> None:
        super().update(compact(array) if pa.types.is_dictionary(array.type) else array)

    def _update_values(self, array: pa.DictionaryArray) -> None:
        names = array.dictionary.to_pylist()
        ours = np.fromiter((self._codes.setdefault(n, len(self._codes)) for n in names), np.int64, len(names))
        local = fixed_values(array.indices, np.dtype(np.int32))
        codes = np.where(_mask(array), ours[local], 0) if array.null_count else ours[local]
        self._parts[0].update(codes.data)

    def _update_nulls(self, rows: int) -> None:
        self._parts[0].update(bytes(8 * rows))

    def _children(self) -> list[str]:
        entries = _Text()
        entries.update(texts(list(self._codes)))
        return [entries.hexdigest()]


class _List(_Column):
    def __init__(self, item: _Column) -> None:
        super().__init__(f"list<{item.type_name}>", 1)
        self._item = item

    def _update_values(self, array: pa.ListArray) -> None:
        self._parts[0].update(_lengths(pc.list_value_length(array)).data)
        self._item.update(array.flatten())

    def _update_nulls(self, rows: int) -> None:
        self._parts[0].update(bytes(8 * rows))

    def _children(self) -> list[str]:
        return [self._item.hexdigest()]


class _Struct(_Column):
    def __init__(self, names: list[str], fields: list[_Column]) -> None:
        inside = ", ".join(f"{n}: {f.type_name}" for n, f in zip(names, fields, strict=True))
        super().__init__(f"struct<{inside}>", 0)
        self._fields = fields

    def _update_values(self, array: pa.StructArray) -> None:
        for column, values in zip(self._fields, array.flatten(), strict=True):
            column.update(values)

    def _update_nulls(self, rows: int) -> None:
        for column in self._fields:
            column.update(pa.nulls(rows))

    def _children(self) -> list[str]:
        return [f.hexdigest() for f in self._fields]


def _column(type_: pa.DataType) -> _Column:
    if pa.types.is_dictionary(type_):
        return _Dictionary()
    if pa.types.is_string(type_):
        return _Text()
    if pa.types.is_list(type_):
        return _List(_column(type_.value_type))
    if pa.types.is_struct(type_):
        fields = [type_.field(i) for i in range(type_.num_fields)]
        return _Struct([f.name for f in fields], [_column(f.type) for f in fields])
    names = {pa.int64(): ("int64", "i8"), pa.uint64(): ("uint64", "u8"), pa.float64(): ("float64", "f8")}
    if type_ in names:
        return _Numbers(*names[type_])
    if pa.types.is_boolean(type_):
        return _Numbers("bool", "u1")
    raise TypeError(f"No column of a run bundle has the type {type_}.")


def compact(array: pa.DictionaryArray) -> pa.DictionaryArray:
    """The same values over a dictionary without NULLs, repeats and unused entries, in order of first appearance."""
    entries = array.dictionary
    if entries.null_count or len(pc.unique(entries)) < len(entries):
        array = array.cast(pa.string()).dictionary_encode()
        entries = array.dictionary
    rows = len(array)
    codes = fixed_values(array.indices, np.dtype(np.int32))
    valid = _mask(array) if array.null_count else None
    seen, positions = (codes, np.arange(rows)) if valid is None else (codes[valid], np.flatnonzero(valid))
    first = np.full(len(entries), rows, np.int64)
    first[seen[::-1]] = positions[::-1]  # the last write stands, which is the first appearance
    order = np.argsort(first, kind="stable")[: int((first < rows).sum())]
    renumbered = np.zeros(len(entries), np.int32)
    renumbered[order] = np.arange(len(order), dtype=np.int32)
    indices = numbers(renumbered[codes] if len(entries) else codes, valid)
    return pa.DictionaryArray.from_arrays(indices, entries.take(numbers(order)).cast(pa.string()))


def fixed_values(array: pa.Array, dtype: np.dtype) -> npt.NDArray:
    """Values of a fixed-width array as ``dtype``, 0 where NULL, without a copy where there is no NULL."""
    values = np.frombuffer(array.buffers()[1] or b"", dtype)[array.offset : array.offset + len(array)]
    return np.where(_mask(array), values, dtype.type(0)) if array.null_count else values


def _lengths(lengths: pa.Array) -> npt.NDArray[np.int64]:
    return fixed_values(lengths.cast(pa.int64()), np.dtype(np.int64))


def _mask(array: pa.Array) -> npt.NDArray[np.bool_]:
    return np.frombuffer(_bytes(pc.is_valid(array)), np.bool_)


def _bytes(flags: pa.Array) -> npt.NDArray[np.uint8]:
    return fixed_values(flags.cast(pa.uint8()), np.dtype(np.uint8))
