"""Archives unpacked into a scratch folder: plain files only, inside it only, within limits; nested ones too."""

from __future__ import annotations

import errno
import os
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, cast

from engine.errors import GapscopeError
from engine.intake.streams import GROWTH, CutOff, Stream, head_of

MAX_MEMBERS = 20_000
MAX_DEPTH = 3
"""Archives inside archives."""
MAX_FOLDERS = 50
"""Folders inside folders."""
FREE_BYTES = 1 << 28
"""What any archive may unpack to; beyond that, ``GROWTH`` times its own size."""
_COPY = 1 << 20
_NO_NAME = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError, zlib.error)


@dataclass
class Room:
    """What an archive may still unpack to, with the archives inside it, and what of it was left out."""

    name: str
    bytes_left: int
    members_left: int = MAX_MEMBERS
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """Members that are no plain files, each with the reason."""

    @classmethod
    def of(cls, archive: Path, name: str) -> Room:
        """That of an archive which lies on the disk."""
        return cls(name, max(FREE_BYTES, GROWTH * archive.stat().st_size))

    def take(self, size: int) -> None:
        """Count bytes that were unpacked.

        Raises:
            GapscopeError: they are far more than the archive should hold.
        """
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise GapscopeError(
                f"{self.name} unpacks to more than {GROWTH} times its size: a damaged archive, or one made to fill "
                "the disk. Unpack it yourself and import what is inside."
            )

    def count(self) -> None:
        """Count a member.

        Raises:
            GapscopeError: there are too many.
        """
        self.members_left -= 1
        if self.members_left < 0:
            raise GapscopeError(f"{self.name} holds more than {MAX_MEMBERS:,} files: import its parts one by one.")


def archive_kind(path: Path, name: str) -> str | None:
    """``zip`` or ``tar`` (compressed or not), by content; None of any other file."""
    head = head_of(path, name, 512)
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06") and zipfile.is_zipfile(path):
        return "zip"
    return "tar" if head[257:262] == b"ustar" else None


def unpack(archive: Path, name: str, target: Path, room: Room, depth: int = 1) -> None:
    """Unpack ``archive`` into the empty folder ``target``, archives inside it into folders of their names.

    Links and devices are not unpacked; ``room.left_out`` names them.

    Raises:
        GapscopeError: it is damaged, reaches outside its folder, names a file twice, is too large, or the disk is full.
    """
    if depth > MAX_DEPTH:
        raise GapscopeError(f"{name} holds archives in archives {depth} deep, {MAX_DEPTH} at most: unpack it yourself.")
    target.mkdir(parents=True, exist_ok=True)
    files = []
    try:
        for member, source in _members(archive, name, room):
            path = target / _inside(member, name)
            _copy(member, source, path, name, room)
            files.append(path)
    except _DAMAGE as error:
        raise GapscopeError(f"{name} cannot be unpacked ({_reason(error)}): pack the folder again.") from None
    for inner in sorted(files):
        if archive_kind(inner, inner.name):
            held = inner.with_name(f"{inner.name[:200]}.packed")
            while held.exists():
                held = held.with_name(held.name + "+")
            inner.rename(held)
            unpack(held, f"{name}/{inner.relative_to(target).as_posix()}", inner, room, depth + 1)
            held.unlink()


def _copy(member: str, source: Any, path: Path, name: str, room: Room) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        out = path.open("xb")
    except (FileExistsError, NotADirectoryError):
        raise GapscopeError(f"{name} names {member!r} twice: pack the folder again.") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise GapscopeError(f"{name} names {_short(member)}, too long for a file: rename it.") from None
        raise _disk(name, error) from None
    with out:
        while data := source.read(_COPY):
            room.take(len(data))
            try:
                out.write(data)
            except OSError as error:
                raise _disk(name, error) from None


def _disk(name: str, error: OSError) -> GapscopeError:
    return GapscopeError(
        f"{name} cannot be unpacked: {error.strerror or error}. Free some space or unpack it yourself."
    )


def _members(archive: Path, name: str, room: Room) -> Iterator[tuple[str, Any]]:
    if archive_kind(archive, name) == "zip":
        yield from _zipped(archive, name, room)
        return
    with Stream(archive, name) as stream, tarfile.open(fileobj=cast(Any, _Readable(stream)), mode="r|") as tarred:
        for member in tarred:
            room.count()
            if member.isdir():
                continue
            if member.isreg():
                yield member.name, tarred.extractfile(member)
                continue
            _inside(member.name, name)
            kind = f"a link to {_short(member.linkname)}" if member.islnk() or member.issym() else "no plain file"
            room.left_out.append((f"{name}/{member.name}", f"{kind}, not unpacked"))


def _zipped(archive: Path, name: str, room: Room) -> Iterator[tuple[str, Any]]:
    with zipfile.ZipFile(archive) as zipped:
        for info in zipped.infolist():
            room.count()
            if info.filename.endswith(("/", "\\")):
                continue
            if info.flag_bits & 1:
                raise GapscopeError(f"{name} is encrypted: unpack it yourself and import what is inside.")
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG):
                _inside(info.filename, name)
                what = "a link" if kind == stat.S_IFLNK else "no plain file"
                room.left_out.append((f"{name}/{info.filename}", f"{what}, not unpacked"))
                continue
            with zipped.open(info) as source:
                yield info.filename, source


class _Readable:
    """A stream as tarfile wants one."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def read(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except CutOff as error:
            raise EOFError(str(error)) from None


def _inside(member: str, name: str) -> PurePosixPath:
    """Where a member goes, below the folder of its archive."""
    path = PurePosixPath(member.replace("\\", "/"))
    if _NO_NAME.search(member):
        raise GapscopeError(f"{name} names {_short(member)}, which is no printable text: rename it and pack again.")
    if path.is_absolute() or ".." in path.parts or not path.parts or re.match("[A-Za-z]:", path.parts[0]):
        raise GapscopeError(f"{name} names {_short(member)}, outside its own folder: not unpacked.")
    if len(path.parts) > MAX_FOLDERS:
        raise GapscopeError(f"{name} holds folders {len(path.parts)} deep, {MAX_FOLDERS} at most: unpack it yourself.")
    return path


def _reason(error: BaseException) -> str:
    text = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    return text.rstrip(".") or type(error).__name__


def _short(text: str) -> str:
    shown = ascii(text)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
