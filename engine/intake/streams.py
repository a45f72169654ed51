"""Bytes of a file as they were before compression, told by content, with a limit on how far they may grow."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from engine.errors import GapscopeError

FREE_BYTES = 1 << 30
"""What any compressed file may unpack to."""
GROWTH = 200
"""Beyond that, how many times its own size: rows of JSON grow 10 to 40 times, a bomb a thousand times."""
_PIECE = 1 << 16


class CutOff(Exception):
    """A compressed stream that ends early or is damaged; what came before it was delivered."""


class _Source(Protocol):
    """``read1`` returns what one step gives, so that nothing is lost where the next step fails."""

    def read1(self, size: int) -> bytes: ...

    def close(self) -> None: ...


class _Zstd:
    """Arrow's reader drops what a failing read had gathered: that piece is read again, byte by byte."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._stream = self._open()
        self._delivered = 0
        self._piece = _PIECE

    def _open(self) -> Any:
        return pa.CompressedInputStream(pa.OSFile(self._path), "zstd")

    def read1(self, size: int) -> bytes:
        try:
            data: bytes = self._stream.read(min(size, self._piece))
        except OSError:
            if self._piece == 1:
                raise
            self._stream, self._piece, left = self._open(), 1, self._delivered
            while left:
                left -= len(self._stream.read(min(left, _PIECE)))
            return self.read1(size)
        self._delivered += len(data)
        return data

    def close(self) -> None:
        self._stream.close()


_OPENERS: tuple[tuple[bytes, str, Callable[[Path], _Source]], ...] = (
    (b"\x1f\x8b", "gzip", gzip.GzipFile),
    (b"\x28\xb5\x2f\xfd", "zstd", _Zstd),
    (b"BZh", "bzip2", bz2.BZ2File),
    (b"\xfd7zXZ\x00", "xz", lzma.LZMAFile),
)


def compression(path: Path) -> str | None:
    """How a file is compressed, by its first bytes; None where it is not."""
    with path.open("rb") as file:
        head = file.read(6)
    return next((name for magic, name, _ in _OPENERS if head.startswith(magic)), None)


class Stream:
    """Reads a file, decompressed. ``read`` raises :class:`CutOff` where a compressed stream breaks off.

    Raises:
        GapscopeError: the file cannot be opened.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        try:
            self.compression = compression(path)
            opener = next((open_ for _, word, open_ in _OPENERS if word == self.compression), None)
            self._file: _Source = opener(path) if opener else path.open("rb")
            self._size = path.stat().st_size
        except OSError as error:
            raise GapscopeError(f"{name} cannot be read: {error.strerror or error}.") from None
        self._delivered = 0

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes and at least one, none at the end.

        Raises:
            CutOff: the stream is damaged here.
            GapscopeError: it unpacks to more than a file of its size should.
        """
        try:
            data = self._file.read1(size)
        except (EOFError, OSError, zlib.error, lzma.LZMAError, ValueError, pa.ArrowException):
            raise CutOff(f"the {self.compression or 'file'} stream ends here, as if cut off") from None
        self._delivered += len(data)
        if self.compression and self._delivered > max(FREE_BYTES, GROWTH * self._size):
            raise GapscopeError(
                f"{self.name} unpacks to more than {GROWTH} times its size: a damaged file, or one made to fill the "
                "memory. Unpack it yourself and import what is inside."
            )
        return data

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def head_of(path: Path, name: str, size: int) -> bytes:
    """The first bytes, decompressed; fewer where the stream breaks off."""
    parts = io.BytesIO()
    with Stream(path, name) as stream:
        try:
            while parts.tell() < size and (data := stream.read(size - parts.tell())):
                parts.write(data)
        except CutOff:
            pass
    return parts.getvalue()
