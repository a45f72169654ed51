"""Files of a store that are only ever appended to: a JSON object per line, under a lock, whole and on the disk.

The ledger of hypotheses and the saved views are such files. A line that is cut off or foreign keeps its place and never
stops the others.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any, Protocol, TypeVar

import orjson

from engine.errors import GapscopeError
from engine.jsonl import Type

CUT_OFF = "not a JSON object; is the line cut off?"


def _is_time(value: Any) -> bool:
    try:
        return type(value) is str and value.endswith("Z") and bool(datetime.fromisoformat(value))
    except ValueError:
        return False


SAID = Type("text that is not blank", lambda v: type(v) is str and bool(v.strip()))
UTC_TIME = Type("a time in UTC such as 2026-03-01T12:00:00.000000Z", _is_time)


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that could not be used. ``store`` is the name of the folder, not where it lies."""

    store: str
    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.store}/{self.file} line {self.line}: {self.reason}"


class Named(Protocol):
    """What such a file keeps: it has an id, and may have a name."""

    @property
    def id(self) -> str:
        """Its id."""


Kept = TypeVar("Kept", bound=Named)


def bad_lines(bad: Sequence[BadLine], whole: str, most: int = 5) -> str:
    """How many lines of the ``whole`` could not be used and why; empty where all could."""
    if not bad:
        return ""
    told = "; ".join(str(one).rstrip(".") for one in bad[:most])
    more = f"; and {len(bad) - most} more" if len(bad) > most else ""
    said = f"Lines of {whole} that cannot be used, left as they are: {len(bad)}. {told}{more}"
    return said if said.endswith("?") else f"{said}."


def distinct(stores: Sequence[Path]) -> list[Path]:
    """The folders, each once, whatever it is called."""
    return list(dict.fromkeys(store.resolve() for store in stores))


def lines(store: Path, name: str, *, lock: bool = True) -> Iterator[tuple[int, bytes]]:
    """The lines of a file of a store with their numbers from 1; none where there is no such file.

    Who holds the file of one store reads the others without ``lock``: two could wait for each other.

    Raises:
        GapscopeError: the file is there and cannot be read.
    """
    try:
        with (store / name).open("rb") as file:
            if lock:
                fcntl.flock(file, fcntl.LOCK_SH)  # not in the middle of a row
            text = file.read()
    except FileNotFoundError:
        return
    except OSError as error:
        raise GapscopeError(f"{store.name}/{name} cannot be read: {error.strerror}.") from None
    for number, line in enumerate(text.split(b"\n"), start=1):
        if line.strip():
            yield number, line


@contextmanager
def locked(store: Path, name: str) -> Iterator[FileIO]:
    """The file of a store, open for appending and for nobody else meanwhile.

    Raises:
        GapscopeError: the store cannot be written.
    """
    try:
        store.mkdir(parents=True, exist_ok=True)
        with (store / name).open("a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
    except OSError as error:
        raise GapscopeError(
            f"Nothing was written: the store {store.name} cannot be written ({error.strerror}); "
            "start gapscope with --store FOLDER of your own."
        ) from None


def append(file: FileIO, row: Mapping[str, str]) -> None:
    """One row, whole and on the disk, or none. What was there before stays as it is."""
    line = orjson.dumps(row) + b"\n"
    size = file.seek(0, os.SEEK_END)
    if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
        line = b"\n" + line  # somebody's row was cut off: it keeps its own line
    if file.write(line) != len(line):
        file.truncate(size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(file.fileno())


def only(known: Iterable[Kept], ref: str, noun: str, command: str) -> Kept:
    """What has this name or id, or the only one whose id begins so; ``noun`` and ``command`` say what it is.

    Raises:
        GapscopeError: there is none, or several.
    """
    every, ref = list(known), ref.strip()
    found = [one for one in every if ref and ref in (one.id, getattr(one, "name", None))]
    found = found or [one for one in every if ref and one.id.startswith(ref)]
    if len(found) == 1:
        return found[0]
    if found:
        fitting = ", ".join(one.id for one in found)
        raise GapscopeError(f"{noun.capitalize()} {ref!r} may be {fitting}: give more of it.")
    raise GapscopeError(f"No {noun} {ref!r}: `gapscope {command} list` shows those of these stores.")


def text_of(name: str, value: str, most: int) -> str:
    """A text without blanks at its ends.

    Raises:
        GapscopeError: longer than ``most`` characters.
    """
    value = value.strip()
    if len(value) > most:
        raise GapscopeError(f"The {name} has {len(value):,} characters: expected at most {most:,}.")
    return value


def iso(time: datetime) -> str:
    """A time as it stands in such a file: UTC, to the microsecond."""
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
