"""Answers about large runs, kept in files beside the runs: the next server, and the next session, find them again.

An answer is known by its question and by the digest of this program: another version makes its own and takes those of
the one before away. The files together have a bound; those that were not read for longest go first. Nothing is kept
where the store is read-only.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from dashboard.kept.derived import FOLDER
from dashboard.kept.packed import NotPacked, pack, unpack

WORTH_S = 0.05
"""What is made faster than this is made again: it costs no more than a file."""
MOST_BYTES = 2 * 2**30
"""Of all files together."""
LARGEST = 96 * 2**20
"""Of one: a sample of six million gaps has 60 MB."""
_PREFIX = "answers-"
_PACKAGES = ("duckdb", "numpy", "pyarrow")


@cache
def program() -> str:
    """A digest of the code that answers are made by, and of the libraries that count for it."""
    digest = hashlib.sha256(" ".join(f"{name} {metadata.version(name)}" for name in _PACKAGES).encode())
    root = Path(__file__).parents[2]
    for package in ("dashboard", "engine"):
        for path in sorted((root / package).rglob("*")):
            if path.suffix in (".py", ".sql", ".json") and path.is_file():
                digest.update(f"\n{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


class Lasting:
    """The answers of this program in the last root of a store. Safe to use from threads.

    Kept are those that took long, or ``all_of_them``.
    """

    def __init__(self, root: Path, all_of_them: bool = False) -> None:
        self._all_of_them = all_of_them
        self._root = root / FOLDER
        self._bytes: int | None = None
        self._lock = threading.Lock()

    @property
    def folder(self) -> Path:
        """Where they are."""
        return self._root / f"{_PREFIX}{program()}"

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        """The answer to the question ``key``, or what ``make()`` gives, kept where that took long.

        ``key`` holds plain values, enumerations and records, and the ids of the runs that the answer rests on.
        """
        path = self.folder / hashlib.sha256(repr(key).encode()).hexdigest()[:24]
        found = _read(path)
        if found is not None:
            return found[0]
        started = time.perf_counter()
        value = make()
        if self._all_of_them or time.perf_counter() - started >= WORTH_S:
            self._write(path, value)
        return value

    def _write(self, path: Path, value: Any) -> None:
        part = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.part")
        try:
            pieces = pack((value,), LARGEST)
            if self._bytes is None:
                self._sweep()
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with open(part, "wb") as file:
                    file.writelines(pieces)
                os.replace(part, path)
            finally:
                part.unlink(missing_ok=True)
        except (NotPacked, OSError):
            return
        with self._lock:
            self._bytes = (self._bytes or 0) + sum(map(len, pieces))
            if self._bytes > MOST_BYTES:
                self._bytes = self._bound()

    def _sweep(self) -> None:
        """Take away what other versions of the program kept."""
        with self._lock:
            for other in kept(self._root):
                if other != self.folder:
                    shutil.rmtree(other, ignore_errors=True)
            self._bytes = sum(size for _, size, _ in _files(self.folder))

    def _bound(self) -> int:
        """Remove the files that were not read for longest until a tenth is free; bytes that are left."""
        files = sorted(_files(self.folder))
        left = sum(size for _, size, _ in files)
        for _, size, path in files:
            if left <= 0.9 * MOST_BYTES:
                break
            with suppress(OSError):
                path.unlink()
                left -= size
        return left


def kept(root: Path) -> list[Path]:
    """The folders of answers in the folder of derived files, one for each version of the program."""
    with suppress(OSError):
        return [path for path in root.iterdir() if path.name.startswith(_PREFIX) and path.is_dir()]
    return []


def _read(path: Path) -> tuple[Any] | None:
    """The answer in a file; None where it is absent or cannot be read."""
    try:
        with open(path, "rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        found: tuple[Any] = unpack(data)
    except (OSError, ValueError):
        return None
    with suppress(OSError):
        os.utime(path)
    return found


def _files(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """When each file was read last, its bytes, and where it is."""
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(OSError):
                state = path.stat()
                yield state.st_mtime, state.st_size, path
