"""Archives unpacked into a scratch folder: plain files only, inside it only, within limits; nested ones too."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, cast

from engine.errors import GapscopeError
from engine.intake.streams import FREE_BYTES, GROWTH, CutOff, Stream, head_of

MAX_MEMBERS = 20_000
MAX_DEPTH = 3
"""Archives inside archives."""
_COPY = 1 << 20


def archive_kind(path: Path) -> str | None:
    """``zip`` or ``tar`` (compressed or not), by content; None of any other file."""
    head = head_of(path, path.name, 512)
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06") and zipfile.is_zipfile(path):
        return "zip"
    return "tar" if head[257:262] == b"ustar" else None


def unpack(archive: Path, name: str, target: Path, depth: int = 1) -> None:
    """Unpack ``archive`` into the empty folder ``target``, archives inside it into folders of their names.

    Raises:
        GapscopeError: it is damaged, reaches outside its folder, holds links or devices, or is too large.
    """
    if depth > MAX_DEPTH:
        raise GapscopeError(f"{name} holds archives in archives {depth} deep, {MAX_DEPTH} at most: unpack it yourself.")
    target.mkdir(parents=True, exist_ok=True)
    limit = max(FREE_BYTES, GROWTH * archive.stat().st_size)
    total = count = 0
    try:
        for member, source in _members(archive, name):
            count += 1
            if count > MAX_MEMBERS:
                raise GapscopeError(f"{name} holds more than {MAX_MEMBERS:,} files: import its parts one by one.")
            place = target / _inside(member, name)
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("wb") as out:
                while data := source.read(_COPY):
                    total += len(data)
                    if total > limit:
                        raise GapscopeError(
                            f"{name} unpacks to more than {GROWTH} times its size: a damaged archive, or one made to "
                            "fill the disk. Unpack it yourself and import what is inside."
                        )
                    out.write(data)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError) as error:
        raise GapscopeError(f"{name} cannot be unpacked ({error}): pack the folder again.") from None
    for inner in sorted(path for path in target.rglob("*") if path.is_file()):
        if archive_kind(inner):
            held = inner.with_name(inner.name + ".packed")
            inner.rename(held)
            unpack(held, f"{name}: {inner.relative_to(target)}", inner, depth + 1)
            held.unlink()


def _members(archive: Path, name: str) -> Iterator[tuple[str, Any]]:
    if archive_kind(archive) == "zip":
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                if info.flag_bits & 1:
                    raise GapscopeError(f"{name} is encrypted: unpack it yourself and import what is inside.")
                if not info.is_dir():
                    with zipped.open(info) as source:
                        yield info.filename, source
        return
    with Stream(archive, name) as stream, tarfile.open(fileobj=cast(Any, _Readable(stream)), mode="r|") as tarred:
        for member in tarred:
            if member.isdir():
                continue
            content = tarred.extractfile(member) if member.isreg() else None
            if content is None:
                raise GapscopeError(f"{name} names {member.name}, which is no plain file: not unpacked.")
            yield member.name, content


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
    path = PurePosixPath(member.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or not path.parts or "\x00" in member or path.parts[0].endswith(":"):
        raise GapscopeError(f"{name} names {member!r}, outside its own folder: not unpacked.")
    return path
