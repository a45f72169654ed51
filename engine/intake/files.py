"""The files of an input, whatever it came in."""

from __future__ import annotations

import copy
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path

from engine.errors import GapscopeError
from engine.intake.archives import Room, archive_kind, unpack
from engine.intake.streams import Stream, head_of

HEAD_BYTES = 1 << 16
HEADS_BYTES = 1 << 27
MAX_FILES = 20_000
UTF8_MARK = b"\xef\xbb\xbf"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class Heads:
    """Heads of the files of one input, in memory as far as they fit: twenty thousand do not, and are read again."""

    def __init__(self) -> None:
        self._held: dict[Path, bytes] = {}
        self._room = HEADS_BYTES

    def of(self, path: Path, name: str) -> bytes:
        """The first 64 KiB of a file, decompressed, without a byte order mark."""
        found = self._held.get(path)
        if found is None:
            found = head_of(path, name, HEAD_BYTES).removeprefix(UTF8_MARK)
            if len(found) <= self._room:
                self._room -= len(found)
                self._held[path] = found
        return found


class InputFile:
    """One file of an input: ``name`` is its place in it, with ``/``; ``path`` where its bytes lie just now."""

    def __init__(self, name: str, path: Path, heads: Heads | None = None) -> None:
        self.name = name
        self.path = path
        self._heads = Heads() if heads is None else heads

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

    @property
    def head(self) -> bytes:
        """The first 64 KiB, decompressed, without a byte order mark."""
        return self._heads.of(self.path, self.name)

    @cached_property
    def sha256(self) -> str:
        """Digest of the bytes as given."""
        try:
            with self.path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise GapscopeError(f"{self.name} cannot be read: {error.strerror or error}.") from None

    def open(self) -> Stream:
        """Its content, decompressed."""
        return Stream(self.path, self.name)


class Intake:
    """Everything that was handed over, as files. Use it in a ``with`` block: unpacked archives vanish at its end."""

    def __init__(
        self,
        path: Path,
        name: str,
        files: Sequence[InputFile],
        scratch: tempfile.TemporaryDirectory[str],
        left_out: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.path = path
        """What was given."""
        self.name = name
        """Its last part, for titles and messages."""
        self.files = tuple(files)
        self.left_out = tuple(left_out)
        """What is no file (links of an archive, pipes, links to nothing), each with the reason."""
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
    try:
        kind = path.stat().st_mode
    except (OSError, ValueError) as error:
        reason = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read ({_why(error)})"
        raise GapscopeError(f"{path} {reason}: give the folder, file or archive to import.") from None
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        raise GapscopeError(f"{path} is {_kind(kind)}: give the folder, file or archive to import.")
    if scratch is not None:
        scratch.mkdir(parents=True, exist_ok=True)
    held = tempfile.TemporaryDirectory(prefix="gapscope-import-", dir=scratch)
    try:
        left_out: list[tuple[str, str]] = []
        files = list(_files(path, Path(held.name), left_out))
        if not files:
            raise GapscopeError(f"{path} holds no file: give the folder, file or archive to import.")
        return Intake(path, path.name or str(path), files, held, left_out)
    except OSError as error:
        held.cleanup()
        raise GapscopeError(f"{error.filename or path} cannot be read: {error.strerror or error}.") from None
    except BaseException:
        held.cleanup()
        raise


def _files(path: Path, scratch: Path, left_out: list[tuple[str, str]]) -> Iterator[InputFile]:
    heads = Heads()
    given = [(path, "")] if path.is_file() else _walk(path, scratch, left_out)
    for number, (file, name) in enumerate(given, 1):
        if archive_kind(file, name or file.name):
            target, room = scratch / f"{number}" / _stem(file.name), Room.of(file, name or file.name)
            unpack(file, name or file.name, target, room)
            left_out += room.left_out
            for inner, inside in _walk(target, scratch, left_out):
                yield InputFile(f"{name}/{inside}".lstrip("/"), inner, heads)
        else:
            yield InputFile(name or _printable(file.name), file, heads)


def _walk(folder: Path, scratch: Path, left_out: list[tuple[str, str]]) -> Iterator[tuple[Path, str]]:
    """Every file below ``folder`` in the order of the names, with its name in it. Links to folders are not followed.

    Raises:
        GapscopeError: there are too many.
    """
    waiting, seen = [folder], 0
    while waiting:
        path = waiting.pop()
        name = _printable(path.relative_to(folder).as_posix())
        if path == folder or stat.S_ISDIR(path.lstat().st_mode):
            if path == scratch:
                continue
            inside = list(islice(path.iterdir(), MAX_FILES + 1))
            seen += len(inside)
            if seen > MAX_FILES:
                raise GapscopeError(f"{folder} holds more than {MAX_FILES:,} files: import its parts one by one.")
            waiting += sorted(inside, reverse=True)
            continue
        try:
            kind = path.stat().st_mode
        except OSError as error:
            left_out.append((name, f"a link to nothing ({_why(error)})"))
            continue
        if stat.S_ISREG(kind):
            yield path, name
        else:
            left_out.append((name, "a link to a folder" if stat.S_ISDIR(kind) else _kind(kind)))


def _kind(mode: int) -> str:
    """What something is that is neither file nor folder."""
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    return kinds.get(stat.S_IFMT(mode), "no file")


def _why(error: Exception) -> str:
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)


def _printable(name: str) -> str:
    """A name that can be shown and stored: bytes that are no text and control characters as ``\\x..``."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return re.sub("[\x00-\x1f\x7f]", lambda found: f"\\x{ord(found[0]):02x}", text)


def _stem(name: str) -> str:
    return name.lstrip(".").partition(".")[0] or "archive"
