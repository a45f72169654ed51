"""Traces as small Parquet files: the whole session tree, content names in place of token ids.

One row per turn (:mod:`engine.traces.columns`); the trace's identity is in the file's metadata, with a digest of all
values.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from engine.errors import GapscopeError
from engine.traces import compact_rows
from engine.traces.columns import COLUMNS, content_of, plays_of, table_of
from engine.traces.files import Head
from engine.traces.tree import Trace

NAME = "the compact Parquet form of a trace"
SCHEMA = "gapscope-trace/2"
_KEY = b"gapscope.trace"
_FIELDS = ("name", "format", "digest", "hash_block_tokens", "notes")
_TEXTS = [
    f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name
    for field in COLUMNS
    if pa.types.is_string(field.type) or field.type == pa.list_(pa.string())
]


def compact_name(trace: Trace) -> str:
    """File name of the compact form: the trace's name and the first 12 hex digits of its digest."""
    return f"{trace.name}-{trace.digest[:12]}.parquet"


def write_compact(trace: Trace, path: Path) -> None:
    """Write ``trace`` to ``path`` in one step: a crash leaves either the old file or the new one.

    Raises:
        GapscopeError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, pack(trace))
    except OSError as error:
        raise GapscopeError(f"Cannot write the compact trace {path}: {error.strerror or error}.") from error


def replace_file(path: Path, data: bytes | memoryview) -> None:
    """Let a file hold ``data``, all of it or, after an error, what it held before.

    Raises:
        OSError: it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{get_ident()}")
    try:
        draft.write_bytes(data)
        os.replace(draft, path)
    finally:
        with suppress(OSError):
            draft.unlink()


def pack(trace: Trace, more: Mapping[str, str] | None = None) -> memoryview:
    """The bytes of a compact file; ``more`` goes into its head, and comes out of :func:`unpack`."""
    table = table_of(trace.plays)
    head = {"schema": SCHEMA, **{name: getattr(trace, name) for name in (*_FIELDS, "read_as")}, **(more or {})}
    head["content"] = content_of(table, _canonical(head))
    out = pa.BufferOutputStream()
    pq.write_table(
        table.replace_schema_metadata({_KEY: _canonical(head)}),
        out,
        compression="zstd",
        use_dictionary=_TEXTS,
        write_statistics=False,
    )
    return memoryview(out.getvalue())


def unpack(data: bytes, where: Path) -> tuple[Trace, dict[str, Any]]:
    """The trace that :func:`pack` was given, and the head with what was added to it.

    Raises:
        GapscopeError: not a compact trace, one that does not hold together, or altered since it was written.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        head = _head(file.schema_arrow)
    except (OSError, pa.ArrowException):
        head = None
    if head is None:
        raise GapscopeError(f"{where} is not a compact trace: expected a Parquet file with the metadata {SCHEMA}.")
    stored = head.pop("content", None)
    try:
        table = file.read(use_threads=False)
        if head["schema"] == compact_rows.SCHEMA:
            plays, content = compact_rows.plays_and_content(table)
        else:
            table = table.select(COLUMNS.names).cast(COLUMNS)
            content = content_of(table, _canonical(head))
            plays = plays_of(table) if content == stored else []
        named = {name: head[name] for name in _FIELDS}
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError) as error:
        raise GapscopeError(
            f"The compact trace {where} is damaged ({error}): write it anew from its source."
        ) from error
    if content != stored:
        raise GapscopeError(
            f"The compact trace {where} was altered after it was written: write it anew from its source."
        )
    return Trace(**named, plays=plays, read_as=head.get("read_as", {})), head


def looks_like(head: Head) -> bool:
    """Whether a file that begins like this is a Parquet file, which only a compact trace may be."""
    return head.line[:4] == b"PAR1"


def read(path: Path, data: bytes) -> Trace:
    """See :func:`unpack`."""
    return unpack(data, path)[0]


def is_compact(path: Path) -> bool:
    """Whether ``path`` is a compact trace (a Parquet file that says so)."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PAR1" and _head(pq.read_schema(path)) is not None
    except (OSError, pa.ArrowException):
        return False


def read_compact(path: Path) -> Trace:
    """The trace that :func:`write_compact` was given.

    Raises:
        GapscopeError: unreadable, or as :func:`unpack`.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise GapscopeError(f"The compact trace {path} cannot be read: {error.strerror}.") from None
    return unpack(data, path)[0]


def _canonical(head: Mapping[str, Any]) -> bytes:
    return json.dumps(head, sort_keys=True).encode()


def _head(schema: pa.Schema) -> dict[str, Any] | None:
    try:
        head = json.loads((schema.metadata or {})[_KEY])
    except (KeyError, ValueError):
        return None
    known = (SCHEMA, compact_rows.SCHEMA)
    return head if isinstance(head, dict) and head.get("schema") in known else None
