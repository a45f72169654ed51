"""The files of an input, whatever it came in."""

from __future__ import annotations

import copy
import hashlib
import tempfile
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from pathlib import Path

from engine.errors import GapscopeError
from engine.intake.archives import archive_kind, unpack
from engine.intake.streams import Stream, head_of

HEAD_BYTES = 1 << 16
MAX_FILES = 20_000


class InputFile:
    """One file of an input: ``name`` is its place in it, with ``/``; ``path`` where its bytes lie just now."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path

    def __repr__(self) -> str:
        return f"InputFile({self.name})"

    @property
    def base(self) -> str:
        """The last part of its name."""
        return self.name.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """The folder it lies in, empty at the top."""
        return self.name.rpartition("/")[0]

    @property
    def size(self) -> int:
        """Bytes on disk, as given (compressed where it is)."""
        return self.path.stat().st_size

    @cached_property
    def head(self) -> bytes:
        """The first 64 KiB, decompressed, without a byte order mark."""
        return head_of(self.path, self.name, HEAD_BYTES).removeprefix(b"\xef\xbb\xbf")

    @cached_property
    def sha256(self) -> str:
        """Digest of the bytes as given."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def open(self) -> Stream:
        """Its content, decompressed."""
        return Stream(self.path, self.name)


class Intake:
    """Everything that was handed over, as files. Use it in a ``with`` block: unpacked archives vanish at its end."""

    def __init__(self, path: Path, name: str, files: Sequence[InputFile], scratch: tempfile.TemporaryDirectory[str]):
        self.path = path
        """What was given."""
        self.name = name
        """Its last part, for titles and messages."""
        self.files = tuple(files)
        self.scratch = Path(scratch.name)
        """A folder for what an import writes on its way."""
        self._scratch = scratch

    def __enter__(self) -> Intake:
        return self

    def __exit__(self, *_: object) -> None:
        self._scratch.cleanup()

    def without(self, names: Collection[str]) -> Intake:
        """The same input, without the files of these names."""
        rest = copy.copy(self)
        rest.files = tuple(file for file in self.files if file.name not in names)
        return rest

    def beside(self, file: InputFile, recognises: Callable[[InputFile], bool]) -> list[InputFile]:
        """Other files of the same folder that ``recognises`` accepts."""
        return [f for f in self.files if f is not file and f.folder == file.folder and recognises(f)]


def open_intake(path: Path, scratch: Path | None = None) -> Intake:
    """Look at what lies at ``path``; archives are unpacked, also those in a folder.

    ``scratch`` is the folder in which the scratch folder is made (default: the system's).

    Raises:
        GapscopeError: nothing there, unreadable, empty, an archive that cannot be trusted, or far too many files.
    """
    path = Path(path)
    if not path.exists():
        raise GapscopeError(f"{path} does not exist: give the folder, file or archive to import.")
    if scratch is not None:
        scratch.mkdir(parents=True, exist_ok=True)
    held = tempfile.TemporaryDirectory(prefix="gapscope-import-", dir=scratch)
    try:
        files = _files(path, Path(held.name))
        if not files:
            raise GapscopeError(f"{path} holds no file: give the folder, file or archive to import.")
        return Intake(path, path.name or str(path), files, held)
    except OSError as error:
        held.cleanup()
        raise GapscopeError(f"{path} cannot be read: {error.strerror or error}.") from None
    except BaseException:
        held.cleanup()
        raise


def _files(path: Path, scratch: Path) -> list[InputFile]:
    if path.is_file():
        if archive_kind(path):
            inside = scratch / "0" / _stem(path.name)
            unpack(path, path.name, inside)
            return _walk(inside, scratch)
        return [InputFile(path.name, path)]
    return _walk(path, scratch)


def _walk(folder: Path, scratch: Path) -> list[InputFile]:
    found: list[InputFile] = []
    for number, path in enumerate(sorted(p for p in folder.rglob("*") if p.is_file()), 1):
        if number > MAX_FILES:
            raise GapscopeError(f"{folder.name} holds more than {MAX_FILES:,} files: import its parts one by one.")
        name = path.relative_to(folder).as_posix()
        if archive_kind(path):
            target = scratch / f"{number}" / _stem(path.name)
            unpack(path, name, target)
            inner = sorted(p for p in target.rglob("*") if p.is_file())
            found += [InputFile(f"{name}/{p.relative_to(target).as_posix()}", p) for p in inner]
        else:
            found.append(InputFile(name, path))
    return found


def _stem(name: str) -> str:
    return name.lstrip(".").partition(".")[0] or "archive"
