"""A run in files that other tools read: its manifest, and each table as CSV, JSON Lines or Parquet.

A folder made here is imported again by :mod:`engine.importers.exported`, unaltered under the same id. In CSV text is
quoted and everything else is not, so that an empty cell is NULL and ``""`` empty text; lists are JSON. Columns without
a single value are left out of CSV and JSON Lines. Rows are read and written a piece at a time.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from engine.bundle.manifest import FILE_NAME
from engine.bundle.reader import Bundle
from engine.bundle.schema import TABLES
from engine.errors import GapscopeError

FORMATS = ("csv", "parquet", "jsonl")
_PIECE = 20_000
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first moment of a zip: the same run gives the same bytes


def export_folder(bundle: Bundle, format: str, folder: Path) -> Path:
    """Write a run's manifest and tables into ``folder``, which is made; returns it.

    Raises:
        GapscopeError: no such format, the run was altered, or the folder is not empty or cannot be written.
    """
    _check(bundle, format)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise GapscopeError(f"{folder} is not empty: give a new folder for the export.")
        for name, write in _files(bundle, format):
            with (folder / name).open("xb") as file:
                write(file)
    except OSError as error:
        raise GapscopeError(f"{folder} cannot be written: {error.strerror or error}. Give another folder.") from None
    return folder


def export_zip(bundle: Bundle, format: str, folder: Path) -> Path:
    """The same files as one zip, ``RUN-FORMAT.zip`` in the existing ``folder``; returns its path.

    For downloads: hand the opened file over, whose size does not matter then, and remove it afterwards.

    Raises:
        GapscopeError: as :func:`export_folder`.
    """
    _check(bundle, format)
    target = folder / f"{export_name(bundle, format)}.zip"
    try:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, write in _files(bundle, format):
                entry = zipfile.ZipInfo(f"{export_name(bundle, format)}/{name}", _EPOCH)
                entry.compress_type = zipfile.ZIP_STORED if name.endswith(".parquet") else zipfile.ZIP_DEFLATED
                with archive.open(entry, "w", force_zip64=True) as file:
                    write(file)
    except OSError as error:
        target.unlink(missing_ok=True)
        raise GapscopeError(f"{target} cannot be written: {error.strerror or error}. Give another folder.") from None
    return target


def export_name(bundle: Bundle, format: str) -> str:
    """What the folder of an export is called where nobody says."""
    return f"{bundle.run_id}-{format}"


def _check(bundle: Bundle, format: str) -> None:
    if format not in FORMATS:
        raise GapscopeError(f"Export format {format!r}: expected one of {', '.join(FORMATS)}.")
    bundle.require_intact()


Write = Callable[[IO[bytes]], object]


def _files(bundle: Bundle, format: str) -> Iterator[tuple[str, Write]]:
    yield FILE_NAME, lambda file: file.write((bundle.path / FILE_NAME).read_bytes())
    for table in bundle.tables:
        yield f"{table}.{format}", _writer(bundle, table, format)


def _writer(bundle: Bundle, table: str, format: str) -> Write:
    path = bundle.file(table)
    assert path is not None
    if format == "parquet":
        return lambda file: _copy(path, file)
    write = _write_csv if format == "csv" else _write_jsonl
    return lambda file: write(path, table, file)


def _copy(path: Path, file: IO[bytes]) -> None:
    with path.open("rb") as source:
        shutil.copyfileobj(source, file)


def _write_csv(path: Path, table: str, file: IO[bytes]) -> None:
    with pq.ParquetFile(path) as source:
        names = _recorded(source, table)
        schema = pa.schema([(name, _csv_type(TABLES[table].schema.field(name).type)) for name in names])
        with pyarrow.csv.CSVWriter(file, schema) as writer:
            for batch in source.iter_batches(_PIECE, columns=names):
                columns = [_csv_column(batch.column(f.name), f.type) for f in schema]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def _csv_type(type_: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_nested(type_) or pa.types.is_dictionary(type_) else type_


def _csv_column(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if not pa.types.is_nested(array.type):
        return array.cast(type_)
    return pa.array([None if v is None else orjson.dumps(v).decode() for v in array.to_pylist()], type_)


def _write_jsonl(path: Path, table: str, file: IO[bytes]) -> None:
    with pq.ParquetFile(path) as source:
        for batch in source.iter_batches(_PIECE, columns=_recorded(source, table)):
            file.writelines(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in batch.to_pylist())


def _recorded(source: pq.ParquetFile, table: str) -> list[str]:
    """Columns that every row must have, and those with a value anywhere."""
    spec, held = TABLES[table], set(source.schema_arrow.names)

    def has_values(name: str) -> bool:
        return any(b.column(0).null_count < b.num_rows for b in source.iter_batches(columns=[name]))

    return [name for name in spec.columns if name in held and (name in spec.required or has_values(name))]
