"""Rows that arrive in any order and in any number, kept on disk until they are sorted: memory stays bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from engine.bundle.columns import spec_of
from engine.bundle.schema import CLOCKS
from engine.errors import GapscopeError

CHUNK = 50_000  # rows of a piece
_HELD = 6  # pieces in memory while they are merged
_TIMES = {c for clocks in CLOCKS.values() for c in clocks if not c.endswith("_after_ns") and c != "after_ns"}
_TIMES |= {"slice_start_ns", "slice_end_ns"}


class Spool:
    """A table of a bundle being collected.

    ``columns`` are those that any row may have; every other is absent. Times may be absolute (epoch nanoseconds):
    :meth:`batches` subtracts what profile start turns out to be.
    """

    def __init__(self, table: str, columns: Sequence[str], scratch: Path) -> None:
        spec = spec_of(table)
        unknown = [c for c in columns if c not in spec.columns]
        if unknown:
            raise ValueError(f"table {table} has no column {unknown[0]}")
        self.table = table
        self.rows = 0
        self._schema = pa.schema([(c, _plain(spec.schema.field(c).type)) for c in spec.columns if c in columns])
        self._keys = [c for c in spec.sorted_by if c in self._schema.names]
        self._names = tuple(self._schema.names)
        self._announced = frozenset(self._names)
        self._held: list[tuple[Any, ...]] = []
        self._path = scratch / f"{table}.spool"
        while self._path.exists():
            self._path = self._path.with_suffix(self._path.suffix + "+")
        self._file = pa.OSFile(str(self._path), "wb")
        self._writer = pa.ipc.new_file(self._file, self._schema)
        self._sizes: list[int] = []

    def append(self, row: Mapping[str, Any]) -> None:
        """Take a row; columns that it lacks are NULL.

        Raises:
            ValueError: a column that was not announced.
        """
        if not row.keys() <= self._announced:
            raise ValueError(f"table {self.table}: unannounced column {min(row.keys() - self._announced)}")
        self._held.append(tuple(map(row.get, self._names)))
        self.rows += 1
        if len(self._held) == CHUNK:
            self._flush()

    def extend(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Take many rows at once, as columns (a subset of the announced ones)."""
        self._flush()
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        arrays = [
            table.column(f.name).cast(f.type).combine_chunks()
            if f.name in table.column_names
            else pa.nulls(table.num_rows, f.type)
            for f in self._schema
        ]
        self._write(pa.Table.from_arrays(arrays, schema=self._schema))
        self.rows += table.num_rows

    def batches(self, shift_ns: int = 0) -> Iterator[pa.RecordBatch]:
        """All rows in the table's order, ``shift_ns`` subtracted from every time. May be asked for repeatedly."""
        self._close()
        if not self.rows:
            yield from _shifted(self._schema.empty_table(), shift_ns).to_batches()
            return
        order, piece_of, row_of = self._order()
        with pa.OSFile(str(self._path), "rb") as file:
            reader = pa.ipc.open_file(file)
            held: OrderedDict[int, pa.RecordBatch] = OrderedDict()
            for start in range(0, len(order), CHUNK):
                wanted = order[start : start + CHUNK]
                yield from _shifted(_gather(reader, held, piece_of[wanted], row_of[wanted]), shift_ns).to_batches()

    def column(self, name: str) -> pa.ChunkedArray:
        """One column of all rows, in the order in which they came."""
        self._close()
        place = self._schema.get_field_index(name)
        with pa.OSFile(str(self._path), "rb") as file:
            reader = pa.ipc.open_file(file)
            chunks = [_copied(reader.get_batch(i).column(place)) for i in range(reader.num_record_batches)]
            return pa.chunked_array(chunks, self._schema.field(place).type)

    def pieces(self, columns: Iterable[str]) -> Iterator[pa.RecordBatch]:
        """Those of these columns that the rows may have, piece by piece in the order in which they came."""
        self._close()
        wanted = set(columns)
        places = [place for place, name in enumerate(self._schema.names) if name in wanted]
        options = pa.ipc.IpcReadOptions(included_fields=places)
        with pa.OSFile(str(self._path), "rb") as file:
            reader = pa.ipc.open_file(file, options=options)
            for at in range(reader.num_record_batches):
                yield reader.get_batch(at)

    def _order(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        if not self._keys:
            order = np.arange(self.rows)
        else:
            keys = pa.Table.from_arrays([self.column(key) for key in self._keys], self._keys)
            sorting = [(key, "ascending", "at_end") for key in self._keys]
            order = pc.sort_indices(keys, sort_keys=sorting).to_numpy().astype(np.int64)
        piece_of = np.repeat(np.arange(len(self._sizes)), self._sizes)
        starts = np.concatenate([[0], np.cumsum(self._sizes)[:-1]]).astype(np.int64)
        return order, piece_of, np.arange(self.rows) - starts[piece_of]

    def _flush(self) -> None:
        if not self._held:
            return
        arrays = []
        columns: Iterable[Sequence[Any]] = zip(*self._held, strict=True)
        for field, values in zip(self._schema, columns, strict=True):
            try:
                if pa.types.is_integer(field.type) and float in set(map(type, values)):
                    values = [_whole(value) for value in values]  # Arrow would cut off the fraction
                arrays.append(pa.array(values, field.type, from_pandas=False))
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as problem:
                reason = str(problem).splitlines()[0]
                raise GapscopeError(f"Table {self.table}, column {field.name}: {reason}.") from None
        self._held.clear()
        self._write(pa.Table.from_arrays(arrays, schema=self._schema))

    def _write(self, table: pa.Table) -> None:
        for batch in table.combine_chunks().to_batches(max_chunksize=CHUNK):
            self._writer.write_batch(batch)
            self._sizes.append(batch.num_rows)

    def _close(self) -> None:
        if self._writer is not None:
            self._flush()
            self._writer.close()
            self._file.close()
            self._writer = None


def _whole(value: Any) -> Any:
    if type(value) is not float:
        return value
    if not value.is_integer():
        raise ValueError(f"{value} where a whole number or NULL is expected")
    return int(value)


def _copied(column: pa.Array) -> pa.Array:
    """The column alone: as read, it holds on to the bytes of every other column of its batch."""
    return pa.concat_arrays([column, column.slice(0, 0)])


def _gather(
    reader: Any, held: OrderedDict[int, pa.RecordBatch], pieces: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
) -> pa.Table:
    """The rows ``rows[i]`` of the pieces ``pieces[i]``, in this order."""
    parts, places = [], []
    for piece in np.unique(pieces):
        mine = np.flatnonzero(pieces == piece)
        if piece not in held:
            held[int(piece)] = reader.get_batch(int(piece))
        held.move_to_end(int(piece))
        parts.append(pa.Table.from_batches([held[int(piece)]]).take(pa.array(rows[mine])))
        places.append(mine)
        while len(held) > _HELD:
            held.popitem(last=False)
    back = np.empty(len(pieces), np.int64)
    back[np.concatenate(places)] = np.arange(len(pieces))
    return pa.concat_tables(parts).take(pa.array(back)).combine_chunks()


def _shifted(table: pa.Table, shift_ns: int) -> pa.Table:
    if not shift_ns:
        return table
    for name in table.column_names:
        if name in _TIMES:
            try:
                moved = pc.subtract_checked(table.column(name), shift_ns)
            except pa.ArrowInvalid:
                raise GapscopeError(
                    f"Column {name} holds a time that is centuries away from profile start: are its units mixed?"
                ) from None
            table = table.set_column(table.column_names.index(name), name, moved)
    return table


def spooled(table: str, rows: Iterable[Mapping[str, Any]], columns: Sequence[str], scratch: Path) -> Spool:
    """A spool of these rows."""
    spool = Spool(table, columns, scratch)
    for row in rows:
        spool.append(row)
    return spool


def _plain(type_: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_dictionary(type_) else type_
