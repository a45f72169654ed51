"""JSON Lines with typed rows: every refusal names the file, the line and the field."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from engine.errors import GapscopeError


@dataclass(frozen=True)
class Type:
    """What a value must be: a name for the message, and a test."""

    name: str
    accepts: Callable[[Any], bool]


_INT64 = 1 << 63
INTEGER = Type("a whole number of 64 bits", lambda v: type(v) is int and -_INT64 <= v < _INT64)
COUNT = Type("a whole number of at least 0", lambda v: type(v) is int and 0 <= v < _INT64)
NUMBER = Type("a number", lambda v: type(v) is int or (type(v) is float and math.isfinite(v)))
DURATION = Type("a number from 0 to 1e9", lambda v: NUMBER.accepts(v) and 0 <= v <= 1e9)  # seconds, 31 years
MOMENT = Type("a number from -8e9 to 8e9", lambda v: NUMBER.accepts(v) and abs(v) <= 8e9)  # seconds that fit as ns
TEXT = Type("text", lambda v: type(v) is str)
OBJECT = Type("an object", lambda v: type(v) is dict)


def optional(of: Type) -> Type:
    """``of``, or null."""
    return Type(f"{of.name} or null", lambda v: v is None or of.accepts(v))


def list_of(of: Type) -> Type:
    """A list whose items are all ``of``."""
    return Type(f"a list of items that are each {of.name}", lambda v: type(v) is list and all(map(of.accepts, v)))


def tuple_of(*of: Type) -> Type:
    """A list with exactly these items."""
    return Type(
        "[" + ", ".join(t.name for t in of) + "]",
        lambda v: type(v) is list and len(v) == len(of) and all(t.accepts(x) for t, x in zip(of, v, strict=True)),
    )


def one_of(*choices: str) -> Type:
    """One of these words."""
    return Type("one of " + ", ".join(choices), lambda v: type(v) is str and v in choices)


Spec = Mapping[str, Type]
"""Required fields of a row and their types; other fields are allowed."""


@dataclass(frozen=True)
class SkippedRow:
    """A row that was left out because the caller asked to go on without bad rows."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file} line {self.line}: {self.reason}"


def problem_of(row: Any, spec: Spec) -> str | None:
    """What is wrong with ``row``, in words that follow "line n: ", or None."""
    if type(row) is not dict:
        return "expected a JSON object"
    for field, kind in spec.items():
        if field not in row:
            return f"the field {field} is missing, expected {kind.name}"
        if not kind.accepts(row[field]):
            return f"{field} is {_short(row[field])}, expected {kind.name}"
    return None


def read_rows(
    path: Path,
    spec_of: Callable[[dict[str, Any]], Spec],
    skipped: list[SkippedRow] | None = None,
    may_be_cut: bool = False,
) -> list[dict[str, Any]]:
    """The rows of a JSON Lines file, plain or gzip, each checked against the spec that ``spec_of`` gives for it.

    ``skipped`` collects rows that cannot be used; without it the first of them is refused. With ``may_be_cut`` a last
    line without its end is no row: whoever wrote it was killed.

    Raises:
        GapscopeError: the file is missing or unreadable, or a row is cut off or of the wrong shape.
    """
    rows: list[dict[str, Any]] = []
    for line, text, broken in _lines(path, may_be_cut):
        problem = broken
        if problem is None:
            if not text.strip():
                continue
            try:
                row = orjson.loads(text)
            except orjson.JSONDecodeError as error:
                problem = f"not a JSON object ({error}); is the file cut off?"
            else:
                problem = problem_of(row, {}) or problem_of(row, spec_of(row))
        if problem is None:
            rows.append(row)
        elif skipped is None:
            raise GapscopeError(
                f"{path} line {line}: {problem}. Repair the file, or import with --skip-bad-rows, "
                "which leaves such rows out and counts them."
            )
        else:
            skipped.append(SkippedRow(path.name, line, problem))
    return rows


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        GapscopeError: the file is missing, not JSON, or holds something else.
    """
    try:
        value = orjson.loads(read_bytes(path))
    except orjson.JSONDecodeError as error:
        raise GapscopeError(f"{path} is not valid JSON ({error}): expected one object.") from error
    if not isinstance(value, dict):
        raise GapscopeError(f"{path} holds {type(value).__name__} in JSON: expected one object.")
    return value


def read_bytes(path: Path) -> bytes:
    """The bytes of a file.

    Raises:
        GapscopeError: the file is missing or cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise GapscopeError(f"{path} is missing: the folder to import must hold it.") from None
    except OSError as error:
        raise GapscopeError(f"{path} cannot be read: {error.strerror or error}.") from error


def _lines(path: Path, may_be_cut: bool) -> Iterator[tuple[int, bytes, str | None]]:
    data = read_bytes(path)
    broken = None
    if data[:2] == b"\x1f\x8b":
        data, broken = _decompress(data)
    lines = data.split(b"\n")
    if may_be_cut or not lines[-1]:
        lines.pop()
    for number, text in enumerate(lines, 1):
        yield number, text, broken if number == len(lines) else None
    if broken and not lines:
        yield 1, b"", broken


def _decompress(data: bytes) -> tuple[bytes, str | None]:
    """What a gzip file holds, up to the point where it is cut off or damaged, and what is wrong there."""
    try:
        return gzip.decompress(data), None
    except (EOFError, OSError, zlib.error):
        try:
            return zlib.decompressobj(wbits=31).decompress(data), "the gzip stream ends here, as if cut off"
        except zlib.error:
            return b"", "the gzip stream is damaged"


def _short(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 60 else text[:57] + "..."
