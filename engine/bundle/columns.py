"""From what a producer hands over to what a bundle stores: names, types, enums, order; nothing is lost on the way."""

from __future__ import annotations

from difflib import get_close_matches

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from engine.arrays import numbers
from engine.bundle.digest import compact, fixed_values
from engine.bundle.schema import TABLES, Table
from engine.errors import GapscopeError


def spec_of(name: str) -> Table:
    """The schema of a table.

    Raises:
        GapscopeError: a bundle has no table of that name.
    """
    if name not in TABLES:
        raise GapscopeError(f"A run bundle has no table {name!r}: expected one of {', '.join(TABLES)}.")
    return TABLES[name]


def conform(name: str, table: pa.Table) -> pa.Table:
    """``table`` in the bundle's columns and types; absent columns become NULL, NaN becomes NULL.

    Raises:
        GapscopeError: an unknown or repeated column, a required one missing, or values that do not fit the type.
    """
    spec = spec_of(name)
    for column in table.column_names:
        if column not in spec.columns:
            near = get_close_matches(column, spec.columns, n=1)
            raise GapscopeError(
                f"Table {name}: unknown column {column!r}" + (f" (did you mean {near[0]}?)." if near else ".")
            )
    if len(set(table.column_names)) < table.num_columns:
        raise GapscopeError(f"Table {name}: a column appears twice among {', '.join(table.column_names)}.")
    missing = [c for c in spec.columns if c in spec.required and c not in table.column_names]
    if missing:
        raise GapscopeError(f"Table {name}: required column {missing[0]} is missing.")
    columns = [
        _cast(name, field, table.column(field.name))
        if field.name in table.column_names
        else pa.chunked_array([pa.nulls(table.num_rows, field.type)])
        for field in spec.schema
    ]
    return pa.Table.from_arrays(columns, schema=spec.schema)


def check_enums(name: str, batch: pa.RecordBatch) -> None:
    """Raise if a value outside its column's enum occurs; dictionaries must be compact."""
    for column, allowed in spec_of(name).enums.items():
        for value in batch.column(column).dictionary.to_pylist():
            if value not in allowed:
                raise GapscopeError(
                    f"Table {name}, column {column}: {value!r} is not one of {', '.join(allowed)}, in {_count(batch)}."
                )


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """The table as one batch with compact dictionaries."""
    table = table.unify_dictionaries().combine_chunks()
    arrays = []
    for column in table.columns:
        array = column.chunk(0) if column.num_chunks else pa.nulls(0, column.type)
        arrays.append(compact(array) if pa.types.is_dictionary(array.type) else array)
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema)


def sort(name: str, table: pa.Table) -> pa.Table:
    """The rows in the table's order (stable, NULLs last); a table in order already comes back as it is."""
    keys = spec_of(name).sorted_by
    if first_unsorted(name, table) is None:
        return table
    plain = pa.Table.from_arrays([_plain(table.column(key)) for key in keys], list(keys))
    order = pc.sort_indices(plain, sort_keys=[(key, "ascending", "at_end") for key in keys])
    return table.take(order)


def first_unsorted(name: str, table: pa.Table) -> int | None:
    """Index of the first row that sorts before its predecessor, or None."""
    rows = table.num_rows
    if rows < 2:
        return None
    ties: npt.NDArray[np.int64] = np.arange(1, rows)
    found: list[int] = []
    for key in spec_of(name).sorted_by:
        column = table.column(key)
        if len(ties) < rows - 1:
            left, right = _plain(column.take(numbers(ties - 1))), _plain(column.take(numbers(ties)))
        else:
            column = _plain(column)
            left, right = column.slice(0, rows - 1), column.slice(1)
        before, same = _before(right, left), _same(left, right)
        if before.any():
            found.append(int(ties[np.argmax(before)]))
        ties = ties[same]
        if not len(ties):
            break
    return min(found, default=None)


def _before(left: pa.ChunkedArray, right: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Where left sorts before right; NULL sorts after every value."""
    both = _flags(pc.less(left, right))
    return both | (_flags(pc.is_valid(left)) & _flags(pc.is_null(right)))


def _same(left: pa.ChunkedArray, right: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    return _flags(pc.equal(left, right)) | (_flags(pc.is_null(left)) & _flags(pc.is_null(right)))


def _flags(flags: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """True where true, False where false or NULL."""
    numbers = flags.cast(pa.uint8()).combine_chunks()
    return fixed_values(numbers, np.dtype(np.uint8)) == 1


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


def _cast(name: str, field: pa.Field, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not _fits(column.type, field.type):
        raise GapscopeError(f"Table {name}, column {field.name}: type {column.type} where {field.type} is expected.")
    try:
        if pa.types.is_dictionary(field.type):
            return _dictionary(column)
        cast = column if column.type == field.type else column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as problem:
        reason = str(problem).splitlines()[0].rstrip(".")
        raise GapscopeError(
            f"Table {name}, column {field.name}: a value of type {column.type} does not fit {field.type} ({reason})."
        ) from None
    if pa.types.is_floating(field.type):
        if pc.any(pc.is_inf(cast)).as_py():
            raise GapscopeError(
                f"Table {name}, column {field.name}: infinity where a finite number or NULL is expected."
            )
        cast = pc.if_else(pc.is_nan(cast), pa.nulls(1, field.type)[0], cast)
    return cast


def _dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    wanted = pa.dictionary(pa.int32(), pa.string())
    if column.type == wanted:
        return column
    if not pa.types.is_dictionary(column.type):
        return column.cast(pa.string()).dictionary_encode().cast(wanted)
    chunks = [
        pa.DictionaryArray.from_arrays(chunk.indices.cast(pa.int32()), chunk.dictionary.cast(pa.string()))
        for chunk in column.chunks
    ]
    return pa.chunked_array(chunks, wanted)


def _fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type may be values of the other at all (a number is no text, a flag is no number)."""
    t = pa.types
    if t.is_null(given):
        return True
    if t.is_dictionary(given):
        given = given.value_type
    if t.is_dictionary(wanted):
        wanted = wanted.value_type
    if t.is_string(wanted):
        return t.is_string(given) or t.is_large_string(given) or t.is_string_view(given)
    if t.is_boolean(wanted):
        return t.is_boolean(given)
    if t.is_list(wanted):
        listed = t.is_list(given) or t.is_large_list(given) or t.is_fixed_size_list(given)
        return listed and _fits(given.value_type, wanted.value_type)
    if t.is_struct(wanted):
        if not t.is_struct(given) or {given.field(i).name for i in range(given.num_fields)} != {
            wanted.field(i).name for i in range(wanted.num_fields)
        }:
            return False
        names = [wanted.field(i).name for i in range(wanted.num_fields)]
        return all(_fits(given.field(n).type, wanted.field(n).type) for n in names)
    return t.is_integer(given) or t.is_floating(given)


def _count(batch: pa.RecordBatch) -> str:
    return "1 row" if batch.num_rows == 1 else f"a batch of {batch.num_rows} rows"
