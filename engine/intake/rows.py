"""Rows of text files, as tools write them: compressed or not, BOM, CRLF, ``NaN``, cut off at the end.

``NaN``, ``Infinity`` and ``-Infinity`` come as floats: whoever reads a value decides (``number`` makes them None).
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator
from typing import Any

import orjson

from engine.errors import GapscopeError
from engine.intake.badrows import BadRows
from engine.intake.files import UTF8_MARK, UTF16_MARKS, InputFile
from engine.intake.streams import CutOff

BLOCK = 1 << 20
MAX_LINE = 64 << 20
MAX_COLUMNS = 2_000
csv.field_size_limit(MAX_LINE)  # lists of token times in one cell pass the 128 KiB of the standard library
_ESCAPE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.", re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def lines(file: InputFile) -> Iterator[tuple[int, bytes, str | None]]:
    """Number (from 1), content without its LF, and what is wrong with it (too long, or the stream breaks off there).

    Lines end with LF or CRLF; with CR in a file that starts without LF.

    Raises:
        GapscopeError: the file cannot be read, or is UTF-16 text.
    """
    refuse_utf16(file)
    number, held, size = 0, [b""], 0
    end, broken = b"", None
    with file.open() as stream:
        while True:
            try:
                block = stream.read(BLOCK)
            except CutOff as error:
                broken = str(error)
                break
            if not block:
                break
            if not end and (b"\n" in block or b"\r" in block):
                end = b"\n" if b"\n" in block else b"\r"
            if not size and number and block.isspace():  # a gigabyte of empty lines packs well
                number += block.count(end)
                continue
            parts = block.split(end) if end else [block]
            for part in parts[:-1]:
                number += 1
                held.append(part)
                yield number, *_line(number, held, size + len(part))
                held, size = [], 0
            size += len(parts[-1])
            if size <= MAX_LINE:
                held.append(parts[-1])
            else:
                held = []
        if size or broken:
            text, problem = _line(number + 1, held, size)
            yield number + 1, text, problem or broken


def _line(number: int, parts: list[bytes], size: int) -> tuple[bytes, str | None]:
    if size > MAX_LINE:
        return b"", f"longer than {MAX_LINE >> 20} MiB"
    text = b"".join(parts)
    return (text.removeprefix(UTF8_MARK) if number == 1 else text), None


def json_rows(file: InputFile, bad: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and object of each line of JSON Lines; lines that hold no object are bad rows."""
    for number, text, broken in lines(file):
        if broken is None and not text.strip():
            continue
        row, problem = (None, broken) if broken else parse(text)
        if type(row) is dict:
            yield number, row
        elif problem and b"\r" in text.strip() and not broken:
            yield from _rows_between_returns(file, number, text, bad)
        else:
            bad.add(f"{file.name} line {number}", problem or f"expected a JSON object, found {_kind(row)}")


def _rows_between_returns(
    file: InputFile, number: int, text: bytes, bad: BadRows
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows that a bare CR parts; inside a row it is white space, so a line is looked at as a whole first."""
    for part in text.split(b"\r"):
        if part.strip():
            row, problem = parse(part)
            if type(row) is dict:
                yield number, row
            else:
                bad.add(f"{file.name} line {number}", problem or f"expected a JSON object, found {_kind(row)}")


def parse(text: bytes | bytearray) -> tuple[Any, str | None]:
    """The JSON value in ``text``, and what is wrong with it. Half of a surrogate pair becomes U+FFFD."""
    try:
        return orjson.loads(text), None
    except orjson.JSONDecodeError as error:
        try:
            return json.loads(whole_pairs(text.decode())), None  # NaN, Infinity, numbers of any length
        except (ValueError, RecursionError):
            return None, f"not JSON ({error})"


def whole_pairs(text: str) -> str:
    """JSON text in which every escaped surrogate has its partner: half of a pair becomes U+FFFD."""
    return _ESCAPE.sub(lambda e: "\\ufffd" if _SURROGATE.fullmatch(e[0]) else e[0], text) if "\\" in text else text


def csv_rows(file: InputFile, bad: BadRows, delimiter: str = ",") -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and cells by column of a CSV file with a head line; rows of another length are bad rows.

    Raises:
        GapscopeError: no head line, a column twice, or far too many columns.
    """
    reader = csv.reader(_text_lines(file, bad), delimiter=delimiter, strict=True)
    try:
        head = next(reader, None)
    except csv.Error as error:
        raise GapscopeError(f"{file.name} line 1: {error}. Expected a line with the names of the columns.") from None
    if not head:
        raise GapscopeError(f"{file.name} is empty: expected a line with the names of the columns.")
    if len(head) > MAX_COLUMNS:
        raise GapscopeError(f"{file.name} has {len(head):,} columns, {MAX_COLUMNS:,} at most: is it the right file?")
    names = [name.strip() for name in head]
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise GapscopeError(f"{file.name} names the column {twice!r} twice: keep one of them.")
    while True:
        before = reader.line_num
        problem = None
        try:
            cells = next(reader, None)
        except csv.Error as error:
            cells, problem = [], str(error)
        if cells is None:
            return
        if not cells and not problem:
            continue
        if not problem and len(cells) != len(names):
            problem = f"{len(cells)} cells where the head has {len(names)}"
        if problem:  # an open quote takes the lines that follow with it
            lost = max(1, reader.line_num - before)
            where = f"line {before + 1}" if lost == 1 else f"lines {before + 1} to {reader.line_num}"
            bad.add(f"{file.name} {where}", problem, lost)
            continue
        yield reader.line_num, dict(zip(names, cells, strict=True))


def _text_lines(file: InputFile, bad: BadRows) -> Iterator[str]:
    for number, data, broken in lines(file):
        if broken:
            bad.add(f"{file.name} line {number}", broken)
            continue
        for part in data.decode("utf-8", "replace").removesuffix("\r").split("\r"):
            yield part + "\n"


def refuse_utf16(file: InputFile) -> None:
    """Raise where a file is UTF-16 text, as some shells write it."""
    if file.head.startswith(UTF16_MARKS):
        raise GapscopeError(f"{file.name} is UTF-16 text: save it as UTF-8 and import it again.")


def number(value: Any) -> float | None:
    """A finite number as float; None of anything else (null, ``NaN``, ``Infinity``, text, true)."""
    if type(value) is int or type(value) is float:
        try:
            found = float(value)
        except OverflowError:
            return None
        return found if math.isfinite(found) else None
    return None


def _kind(value: Any) -> str:
    words = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return words.get(type(value), "a number")
