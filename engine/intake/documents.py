"""JSON documents, each held in memory as a whole."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from engine.errors import GapscopeError
from engine.intake.badrows import BadRows
from engine.intake.files import HEAD_BYTES, UTF8_MARK, UTF16_MARKS, InputFile
from engine.intake.rows import BLOCK, parse, refuse_utf16, whole_pairs
from engine.intake.streams import CutOff

MAX_DOCUMENT = 512 << 20
"""Of which memory takes five times as much (2.6 GB) while it is read."""
_JSON_NAME = re.compile(r"\.(json|jsonl|ndjson)(\.(gz|zst|bz2|xz))?$", re.IGNORECASE)
_SPACE = re.compile(r"[ \t\r\n\ufeff]*")


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
    number, start = 0, 0
    while start < len(data):  # as long as each has a line of its own
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        text = data[start:end]
        if text.strip():
            value, problem = parse(text)
            if problem:
                break
            number += 1
            yield number, value
        start = end + 1
    if start >= len(data):
        return
    del data[:start]
    value, problem = parse(data)
    if problem is None:
        yield number + 1, value
        return
    try:
        rest = whole_pairs(data.decode())
    except UnicodeDecodeError as error:
        bad.add(file.name, f"not UTF-8 ({error.reason} at byte {start + error.start})")
        return
    decoder, position = json.JSONDecoder(), 0
    while True:
        space = _SPACE.match(rest, position)
        position = space.end() if space else position
        if position >= len(rest):
            return
        number += 1
        try:
            value, position = decoder.raw_decode(rest, position)
        except (ValueError, RecursionError) as error:
            bad.add(f"{file.name} document {number}", f"not JSON ({error})")
            return
        yield number, value


def whole(file: InputFile) -> bytearray:
    """All of a file, decompressed, without a byte order mark and white space at its end.

    Raises:
        GapscopeError: it breaks off, is UTF-16 text, or is too large to be held.
    """
    refuse_utf16(file)
    out = bytearray()
    with file.open() as stream:
        try:
            while data := stream.read(BLOCK):
                out += data
                if len(out) > MAX_DOCUMENT:
                    raise GapscopeError(
                        f"{file.name} is one JSON document of more than {MAX_DOCUMENT >> 20} MiB, too large to be "
                        "held in memory: export it as JSON Lines or without texts, or in parts."
                    )
        except CutOff as error:
            raise GapscopeError(f"{file.name}: {error}. Get the whole file.") from None
    if out.startswith(UTF8_MARK):
        del out[: len(UTF8_MARK)]
    return out.rstrip()


def trouble(file: InputFile, most: int = HEAD_BYTES) -> str | None:
    """Why no importer can know a file, as far as its first ``most`` bytes tell; None where nothing is wrong with it."""
    head = file.head
    if not head:
        with file.open() as stream:
            try:
                stream.read(1)
            except CutOff as error:
                return str(error)
        return "it is empty"
    if head.startswith(UTF16_MARKS):
        return "it is UTF-16 text: save it as UTF-8"
    if head.startswith(b"PK\x03\x04"):
        return "it is a zip archive that is cut off or damaged: pack the folder again"
    looks = head.lstrip()[:1] in (b"{", b"[")
    if looks or _JSON_NAME.search(file.base):
        problem = _json_trouble(_all_of(file, most))
        how = "looks like JSON" if looks else "has a name of JSON"
        return f"it {how}, and {problem}" if problem else None
    return None


def _all_of(file: InputFile, most: int) -> bytes | None:
    """A whole file, decompressed; None where it is longer than ``most`` bytes or breaks off."""
    if len(file.head) < HEAD_BYTES:
        return file.head
    if most <= HEAD_BYTES:
        return None
    out = bytearray()
    with file.open() as stream, suppress(CutOff):
        while len(out) <= most:
            if not (data := stream.read(BLOCK)):
                return bytes(out).removeprefix(UTF8_MARK)
            out += data
    return None


def _json_trouble(data: bytes | None) -> str | None:
    """Where a text stops being JSON, or JSON Lines if its first line is JSON; None of sound text, and without any."""
    if data is None:
        return None
    _, problem = parse(data)
    lines = [(number, line) for number, line in enumerate(data.splitlines(), 1) if line.strip()]
    if problem is None or not lines:
        return None
    if parse(lines[0][1])[1]:
        return f"is {problem}"
    bad = ((number, words) for number, line in lines if (words := parse(line)[1]))
    return next((f"line {number} is {words}" for number, words in bad), None)
