"""Rows and documents of text files, as tools write them: gzip or not, BOM, CRLF, ``NaN``, cut off at the end.

``NaN``, ``Infinity`` and ``-Infinity`` come as floats: whoever reads a value decides (``number`` makes them None).
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from typing import Any

import orjson

from engine.errors import GapscopeError
from engine.intake.badrows import BadRows
from engine.intake.files import InputFile
from engine.intake.streams import CutOff

BLOCK = 1 << 20
MAX_LINE = 64 << 20
MAX_DOCUMENT = 512 << 20
MAX_COLUMNS = 2_000
_MARK = b"\xef\xbb\xbf"


def lines(file: InputFile) -> Iterator[tuple[int, bytes, str | None]]:
    """Number (from 1), content without line end, and what is wrong with it (a stream that breaks off there).

    Lines end with LF, CRLF or a bare CR; a CR inside a JSON line is white space, so it does no harm there.
    """
    number, rest, first = 0, b"", True
    with file.open() as stream:
        broken: str | None = None
        while True:
            try:
                block = stream.read(BLOCK)
            except CutOff as error:
                block, broken = b"", str(error)
            if first:
                block, first = block.removeprefix(_MARK), False
            if not block:
                break
            parts = (rest + block).split(b"\n")
            rest = parts.pop()
            if len(rest) > MAX_LINE:
                raise GapscopeError(f"{file.name} line {number + len(parts) + 1} is longer than {MAX_LINE >> 20} MiB.")
            for text in parts:
                number += 1
                yield number, text, None
        if rest or broken:
            yield number + 1, rest, broken


def json_rows(file: InputFile, bad: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and object of each line of JSON Lines; lines that hold no object are bad rows."""
    for number, text, broken in lines(file):
        if broken is None and not text.strip():
            continue
        row, problem = (None, broken) if broken else parse(text)
        if type(row) is dict:
            yield number, row
        else:
            bad.add(f"{file.name} line {number}", problem or f"expected a JSON object, found {_kind(row)}")


def parse(text: bytes) -> tuple[Any, str | None]:
    """The JSON value in ``text``, and what is wrong with it."""
    try:
        return orjson.loads(text), None
    except orjson.JSONDecodeError as error:
        try:
            return json.loads(text), None  # NaN, Infinity, numbers of any length
        except (ValueError, RecursionError):
            return None, f"not JSON ({error})"


def json_document(file: InputFile) -> Any:
    """The one JSON value that a file holds.

    Raises:
        GapscopeError: not JSON, cut off, or too large to be held.
    """
    value, problem = parse(whole(file))
    if problem:
        raise GapscopeError(f"{file.name} is {problem}: expected one JSON document. Is it cut off?")
    return value


def json_documents(file: InputFile, bad: BadRows) -> Iterator[tuple[int, Any]]:
    """Number (from 1) and value of each document of a file that holds one, or several one after the other."""
    data = whole(file)
    value, problem = parse(data)
    if problem is None:
        yield 1, value
        return
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        bad.add(file.name, f"not UTF-8 ({error.reason} at byte {error.start})")
        return
    decoder, position, number = json.JSONDecoder(), 0, 0
    while position < len(text):
        while position < len(text) and text[position] in " \t\r\n\ufeff":
            position += 1
        if position >= len(text):
            return
        number += 1
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            bad.add(f"{file.name} document {number}", f"not JSON ({error})")
            return
        yield number, value


def csv_rows(file: InputFile, bad: BadRows, delimiter: str = ",") -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and cells by column of a CSV file with a head line; rows of another length are bad rows.

    Raises:
        GapscopeError: no head line, a column twice, or far too many columns.
    """
    numbered = _text_lines(file, bad)
    reader = csv.reader((text for text in numbered), delimiter=delimiter)
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
        try:
            cells = next(reader, None)
        except csv.Error as error:
            bad.add(f"{file.name} line {reader.line_num}", str(error))
            continue
        if cells is None:
            return
        if not cells:
            continue
        if len(cells) != len(names):
            bad.add(f"{file.name} line {reader.line_num}", f"{len(cells)} cells where the head has {len(names)}")
            continue
        yield reader.line_num, dict(zip(names, cells, strict=True))


def _text_lines(file: InputFile, bad: BadRows) -> Iterator[str]:
    for number, data, broken in lines(file):
        if broken:
            bad.add(f"{file.name} line {number}", broken)
            continue
        text = data.decode("utf-8", "replace").replace("\x00", "")
        for part in text.removesuffix("\r").split("\r"):
            yield part + "\n"


def whole(file: InputFile) -> bytes:
    """All of a file, decompressed, without a byte order mark.

    Raises:
        GapscopeError: it breaks off, or is too large to be held.
    """
    out = io.BytesIO()
    with file.open() as stream:
        try:
            while data := stream.read(BLOCK):
                out.write(data)
                if out.tell() > MAX_DOCUMENT:
                    raise GapscopeError(f"{file.name} is one document of more than {MAX_DOCUMENT >> 20} MiB.")
        except CutOff as error:
            raise GapscopeError(f"{file.name}: {error}. Get the whole file.") from None
    return out.getvalue().removeprefix(_MARK)


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
