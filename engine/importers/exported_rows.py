"""Rows of an exported table, in blocks that conform to the bundle; what does not is a bad row."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from engine.bundle.columns import conform
from engine.bundle.schema import TABLES
from engine.errors import GapscopeError
from engine.intake import BadRows, InputFile, json_rows
from engine.intake.streams import CutOff

BLOCK = 20_000
_NEEDED = ("request_id", "status")  # of requests, on every row
_BYTES = 1 << 22
_WORDS = {
    pa.int64(): "a whole number",
    pa.uint64(): "a whole number from 0 to 2^64 - 1",
    pa.float64(): "a finite number",
    pa.bool_(): "true or false",
    pa.string(): "text",
}
_PYTHON: Mapping[pa.DataType, tuple[type, ...]] = {
    pa.int64(): (int,),
    pa.uint64(): (int,),
    pa.float64(): (int, float),
    pa.bool_(): (bool,),
    pa.string(): (str,),
}

Convert = Callable[[Any, pa.DataType], pa.Array]


def read_csv(table: str, file: InputFile, bad: BadRows) -> Iterator[pa.Table]:
    """Rows of CSV: an empty cell is NULL, ``""`` is empty text, lists are JSON."""
    lost: list[str] = []

    def misfit(row: Any) -> str:
        lost.append(f"{row.actual_columns} cells where the head has {row.expected_columns}")
        return "skip"

    try:
        with pyarrow.csv.open_csv(
            _Source(file),
            pyarrow.csv.ReadOptions(use_threads=False, block_size=_BYTES),
            pyarrow.csv.ParseOptions(newlines_in_values=True, invalid_row_handler=misfit),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(TABLES[table].columns, pa.string()),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=[""],
            ),
        ) as reader:
            names = _known(table, reader.schema.names, file.name)
            before = 0
            for batch in reader:
                for problem in lost:
                    bad.add(file.name, problem)
                lost.clear()
                yield _block(
                    table,
                    file.name,
                    "row",
                    range(before + 1, before + batch.num_rows + 1),
                    dict(zip(names, batch.columns, strict=True)),
                    _from_text,
                    bad,
                )
                before += batch.num_rows
            for problem in lost:
                bad.add(file.name, problem)
    except (pa.ArrowException, UnicodeDecodeError, CutOff) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise GapscopeError(f"{file.name} is no CSV that can be read ({reason}). Export it again.") from None


def read_jsonl(table: str, file: InputFile, bad: BadRows) -> Iterator[pa.Table]:
    """Rows of JSON Lines; a field that is absent is NULL."""
    rows, known = json_rows(file, bad), set(TABLES[table].columns)
    while block := list(islice(rows, BLOCK)):
        named = set().union(*(row for _, row in block))
        if not named <= known:
            line, row = next((line, row) for line, row in block if not row.keys() <= known)
            _known(table, list(row), f"{file.name} line {line}")
        used = [c for c in TABLES[table].columns if c in named]
        cells = {c: [row.get(c) for _, row in block] for c in used}
        yield _block(table, file.name, "line", [line for line, _ in block], cells, _from_json, bad)


def read_parquet(table: str, file: InputFile, bad: BadRows) -> Iterator[pa.Table]:
    """Rows of Parquet."""
    try:
        with pq.ParquetFile(file.path) as source:
            _known(table, source.schema_arrow.names, file.name)
            for batch in source.iter_batches(BLOCK):
                batch.validate(full=True)
                yield conform(table, pa.Table.from_batches([batch]))
    except (OSError, ValueError, TypeError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise GapscopeError(f"{file.name} is no Parquet file that can be read ({reason}). Export it again.") from None


READERS: Mapping[str, Callable[[str, InputFile, BadRows], Iterator[pa.Table]]] = {
    "csv": read_csv,
    "jsonl": read_jsonl,
    "parquet": read_parquet,
}


def _known(table: str, names: Sequence[str], where: str) -> Sequence[str]:
    """``names``, all of them columns of the table, and none missing that must be there in CSV and Parquet."""
    for name in names:
        if name not in TABLES[table].columns:
            near = get_close_matches(name, TABLES[table].columns, n=1)
            hint = f"is it {near[0]}?" if near else "remove it."
            raise GapscopeError(f"{where}: table {table} has no column {name!r:.80}: {hint}")
        if list(names).count(name) > 1:
            raise GapscopeError(f"{where}: the column {name} is there twice: keep one of them.")
    return names


def _block(
    table: str,
    where: str,
    word: str,
    numbers: Sequence[int],
    cells: Mapping[str, Any],
    convert: Convert,
    bad: BadRows,
) -> pa.Table:
    """Cells by column as a conforming table; at once where all of them are good, else row by row."""
    schema = TABLES[table].schema
    missing = [c for c in schema.names if c in TABLES[table].required and c not in cells]
    if missing:
        raise GapscopeError(f"{where}: the column {missing[0]} is missing, and table {table} needs it.")

    def rows(start: int, end: int) -> pa.Table:
        arrays = []
        for name, column in cells.items():
            type_ = schema.field(name).type
            type_ = pa.string() if pa.types.is_dictionary(type_) else type_
            try:
                array = convert(column[start:end], type_)
                _check(table, name, array)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                raise _Misfit(name, type_, column[start], str(error)) from None
            arrays.append(array)
        return conform(table, pa.Table.from_arrays(arrays, list(cells)))

    try:
        return rows(0, len(numbers))
    except _Misfit:
        pass
    good = []
    for i, number in enumerate(numbers):
        try:
            good.append(rows(i, i + 1))
        except _Misfit as problem:
            bad.add(f"{where} {word} {number}", problem.words)
    return pa.concat_tables(good) if good else conform(table, schema.empty_table())


def _check(table: str, name: str, array: pa.Array) -> None:
    allowed = TABLES[table].enums.get(name)
    if allowed and not pc.all(pc.is_in(array.drop_null(), value_set=pa.array(allowed))).as_py():
        raise ValueError(f"one of {', '.join(allowed)}")
    if table == "requests" and name in _NEEDED and array.null_count:
        raise ValueError("a value")


class _Misfit(Exception):
    """A value that its column cannot take."""

    def __init__(self, name: str, type_: pa.DataType, value: Any, reason: str) -> None:
        value = value.as_py() if isinstance(value, pa.Scalar) else value
        expected = reason if reason.startswith(("one of ", "a value")) else _WORDS.get(type_, f"JSON of {type_}")
        self.words = f"{name} is {value!r:.60}, expected {expected}"


def _from_text(cells: pa.Array, type_: pa.DataType) -> pa.Array:
    if pa.types.is_string(type_):
        return cells
    if pa.types.is_nested(type_):
        return _from_json([None if t is None else orjson.loads(t) for t in cells.to_pylist()], type_)
    return _finite(cells.cast(type_))


def _from_json(cells: Sequence[Any], type_: pa.DataType) -> pa.Array:
    plain = not pa.types.is_nested(type_)
    if not (set(map(type, cells)) <= {*_PYTHON[type_], type(None)} if plain else all(_is(c, type_) for c in cells)):
        raise ValueError
    return _finite(pa.array(cells, type_, from_pandas=False))


def _finite(array: pa.Array) -> pa.Array:
    if pa.types.is_floating(array.type) and not pc.all(pc.is_finite(array.drop_null())).as_py():
        raise ValueError
    return array


def _is(value: Any, type_: pa.DataType) -> bool:
    """Whether a JSON value is one of the type, or null."""
    if value is None:
        return True
    if pa.types.is_list(type_):
        return type(value) is list and all(_is(item, type_.value_type) for item in value)
    if pa.types.is_struct(type_):
        fields = {type_.field(i).name: type_.field(i).type for i in range(type_.num_fields)}
        return type(value) is dict and value.keys() == fields.keys() and all(_is(value[n], fields[n]) for n in fields)
    return type(value) in _PYTHON[type_]


class _Source:
    """A file as Arrow reads it; bytes that are no UTF-8 become U+FFFD."""

    def __init__(self, file: InputFile) -> None:
        self._stream = file.open()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.closed = False

    def read(self, size: int = _BYTES) -> bytes:
        """The next bytes, decompressed; none at the end."""
        while data := self._stream.read(size):
            if text := self._decoder.decode(data):
                return text.encode()
        return self._decoder.decode(b"", final=True).encode()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
        self.closed = True
