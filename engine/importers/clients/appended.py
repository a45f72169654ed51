"""JSON documents that a tool appended to one file, told apart without reading any of them whole."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from engine.errors import GapscopeError
from engine.importers.clients.outline import outline
from engine.intake import InputFile
from engine.intake.documents import MAX_DOCUMENT
from engine.intake.rows import parse
from engine.intake.streams import CutOff

_BLOCK = 1 << 20
_HEAD = 1 << 16
_START = re.compile(rb"[\r\n]\{")
_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Document:
    """One object of a file: where it lies in the decompressed file, and what was seen of it."""

    file: InputFile
    place: int
    """From 1."""
    count: int
    """Objects in the file."""
    start: int
    end: int
    head: bytes
    marks: frozenset[bytes]
    """Which of the words that were asked for occur in it."""

    @cached_property
    def keys(self) -> dict[str, frozenset[str]]:
        """Keys of the object as far as its head goes."""
        return outline(self.head)

    @property
    def where(self) -> str:
        """The document in words, for messages."""
        return self.file.name if self.count == 1 else f"{self.file.name} document {self.place}"

    @property
    def among(self) -> str:
        """Its place among the others of the file, in words; empty where it is alone."""
        return "" if self.count == 1 else f" (document {self.place} of {self.count})"

    @property
    def name(self) -> str:
        """The file's name without its ending, and the place where there are several."""
        stem = self.file.base
        for ending in (".gz", ".zst", ".bz2", ".xz", ".jsonl", ".json"):
            stem = stem.removesuffix(ending)
        return stem if self.count == 1 else f"{stem}-{self.place}"

    def read(self) -> dict[str, Any]:
        """The object.

        Raises:
            GapscopeError: it is no JSON object, cut off, or too large to be held.
        """
        if self.end - self.start > MAX_DOCUMENT:
            raise GapscopeError(f"{self.where} is one document of more than {MAX_DOCUMENT >> 20} MiB.")
        value, problem = parse(self._bytes().removeprefix(_MARK))
        if problem or not isinstance(value, dict):
            raise GapscopeError(f"{self.where} is {problem or 'no object'}: expected one JSON object. Is it cut off?")
        return value

    def _bytes(self) -> bytes:
        out, left = io.BytesIO(), self.start
        with self.file.open() as stream:
            try:
                while left > 0 and (data := stream.read(min(left, _BLOCK))):
                    left -= len(data)
                left = self.end - self.start
                while left > 0 and (data := stream.read(min(left, _BLOCK))):
                    out.write(data)
                    left -= len(data)
            except CutOff as error:
                raise GapscopeError(f"{self.file.name}: {error}. Get the whole file.") from None
        return out.getvalue()


def documents(file: InputFile, words: Sequence[bytes] = ()) -> list[Document]:
    """The objects of a file, each of which begins a line; ``words`` are looked for in each.

    Tools that append write a line per object. A line that begins with ``{`` is inside none: text in JSON has no
    line ends, and what is printed over several lines is indented. A stream that breaks off ends its last object.
    """
    starts, heads, marks, end = [0], [b""], [set[bytes]()], 0
    for offset, data in _blocks(file):
        begin = max(0, starts[-1] - offset)
        while True:
            found = _START.search(data, begin)
            stop = len(data) if found is None else found.start() + 1
            piece, held = data[begin:stop], offset + begin - starts[-1]
            heads[-1] = heads[-1][:held] + piece[: max(0, _HEAD - held)]
            marks[-1].update(word for word in words if word in piece)
            if found is None:
                break
            starts.append(offset + stop)
            heads.append(b"")
            marks.append(set())
            begin = stop
        end = offset + len(data)
    kept = [
        (start, stop, head, mark)
        for start, stop, head, mark in zip(starts, [*starts[1:], end], heads, marks, strict=True)
        if head.strip(_MARK + b" \t\r\n")
    ]
    return [
        Document(file, place, len(kept), start, stop, head, frozenset(mark))
        for place, (start, stop, head, mark) in enumerate(kept, 1)
    ]


def _blocks(file: InputFile, overlap: int = 64) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of a file piece by piece; a piece begins with the end of the one before."""
    offset, kept = 0, b""
    with file.open() as stream:
        while True:
            try:
                data = stream.read(_BLOCK)
            except CutOff:
                return
            if not data:
                return
            data = kept + data
            yield offset, data
            kept = data[-overlap:]
            offset += len(data) - len(kept)
