"""What a trace is read from: a file, perhaps compressed, or a folder of files; and the JSON rows in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from engine.errors import GapscopeError

FREE_BYTES = 1 << 30
"""What any compressed trace may unpack to."""
GROWTH = 200
"""Beyond that, how many times its own size: rows of JSON grow 10 to 40 times, a bomb a thousand times."""
_PIECE = 1 << 24
_START = 1 << 17
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5": "zstd"}
_SUFFIXES = (".gz", ".zst")


@dataclass(frozen=True)
class Head:
    """How a trace begins: its first line, the first JSON object in it (empty where it has none), the first 128 KiB."""

    line: bytes
    row: dict[str, Any] = field(default_factory=dict)
    start: bytes = b""


def read_given(path: Path) -> bytes:
    """A trace as it is kept and identified.

    A folder is the rows of its files, sorted by name, one to a line. Files in it that hold no JSON (a README) and
    hidden ones are no part of it.

    Raises:
        GapscopeError: unreadable, or a file of a folder that cannot be unpacked.
    """
    if path.is_dir():
        return b"\n".join(line for _, lines in _folder(path) for line in lines)
    return _bytes(path)


def digest_of(path: Path) -> str:
    """The SHA-256 of what :func:`read_given` reads, without holding a file in memory.

    Raises:
        GapscopeError: as :func:`read_given`.
    """
    if path.is_dir():
        return hashlib.sha256(read_given(path)).hexdigest()
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from None


def head_of(data: bytes) -> Head:
    """The beginning of a trace in ``data``, for telling its format."""
    line = _first_line(data)
    if line[:1] == b"{":
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            row = _first_object(data.lstrip())
    else:
        row = _first_object(data.lstrip()[1:].lstrip()) if line[:1] == b"[" else {}
    return Head(line, row, data[:_START])


def rows(path: Path, data: bytes, loads: Callable[[memoryview], Any] = orjson.loads) -> Iterator[tuple[int, Any]]:
    """The JSON values of a trace with their numbers: one to a line (counted from 1), or the items of one array.

    A file that is one object over several lines has that one row. Blank lines are passed over. ``loads`` parses a line.

    Raises:
        GapscopeError: something that is no JSON, named by its place.
    """
    whole = _document(data)
    if whole is not None:
        yield from enumerate(whole, 1)
        return
    view, start, number = memoryview(data), 0, 0
    while start < len(data):
        end = data.find(b"\n", start)
        line = view[start : end if end >= 0 else len(data)]  # no copy: lines are long
        start, number = start + len(line) + 1, number + 1
        try:
            row = loads(line)
        except orjson.JSONDecodeError as error:
            if not bytes(line).strip():
                continue
            raise GapscopeError(
                f"{place(path, data, number)}: not valid JSON ({error}); is the file truncated?"
            ) from None
        yield number, row


def place(path: Path, data: bytes, number: int) -> str:
    """Where row ``number`` of :func:`rows` stands, for a refusal: the file, and its line or item."""
    if not path.is_dir():
        item = data.lstrip()[:1] == b"[" and _document(data) is not None
        return f"{path}, {'item' if item else 'line'} {number}"
    for file, lines in _folder(path):
        if number <= len(lines):
            return f"{file}, row {number}"
        number -= len(lines)
    return f"{path}, row {number}"


def name_of(path: Path) -> str:
    """What a trace in ``path`` is called: the file's name without what says how it is packed and written."""
    return Path(path.stem).stem if path.suffix in _SUFFIXES else path.stem


def _first_line(data: bytes) -> bytes:
    """The first line that is not blank, without a copy of what follows."""
    start = len(data) - len(data.lstrip()) if data[:1].isspace() else 0
    end = data.find(b"\n", start)
    return data[start : end if end >= 0 else len(data)]


def _document(data: bytes) -> list[Any] | None:
    """The rows of data that is one JSON document, an array of rows or a single one; None for rows one to a line."""
    line = _first_line(data)
    if line[:1] not in (b"[", b"{"):
        return None
    if line[:1] == b"{":
        try:
            orjson.loads(line)
        except orjson.JSONDecodeError:
            pass
        else:
            return None
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, list) else [value]


def _first_object(data: bytes) -> dict[str, Any]:
    try:
        row, _ = json.JSONDecoder().raw_decode(data.decode(errors="replace"))
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _folder(path: Path) -> Iterator[tuple[Path, list[bytes]]]:
    """The files of a folder that hold JSON, sorted by name, each as lines with one row."""
    for file in sorted(path.iterdir()):
        if file.name.startswith(".") or not file.is_file():
            continue
        data = unpacked(file, _bytes(file))
        if data.lstrip()[:1] not in (b"{", b"["):
            continue
        whole = _document(data)
        yield file, data.rstrip().split(b"\n") if whole is None else [orjson.dumps(row) for row in whole]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> GapscopeError:
    return GapscopeError(f"Trace {path} cannot be read ({error.strerror}).")


def unpacked(path: Path, data: bytes) -> bytes:
    """What is in a trace: the same bytes where they are not compressed.

    Raises:
        GapscopeError: damaged, or it unpacks to more than a file of its size should.
    """
    kind = _COMPRESSED.get(data[:2])
    if kind is None:
        return data
    import pyarrow as pa  # here, since plain files need none of it

    limit = max(FREE_BYTES, GROWTH * len(data))
    stream, pieces, size = pa.CompressedInputStream(pa.BufferReader(data), kind), [], 0
    try:
        while piece := stream.read(_PIECE):
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise GapscopeError(
                    f"Trace {path} unpacks to more than {limit >> 20:,} MiB: a damaged file, or one made to fill the "
                    "memory; unpack it yourself and give what is inside."
                )
    except OSError as error:
        raise GapscopeError(f"Trace {path} cannot be unpacked ({error}): is the file cut off?") from None
    return b"".join(pieces)
