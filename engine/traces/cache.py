"""Compiled traces beside the runs of a store, so that a trace which was read before need not be parsed again.

``<store>/compiled/`` holds one compact file per trace, found by the digest of its source, what was decided on reading
it, and the code that reads traces. The folder can be deleted at any time. What was altered, is of another version, or
cannot be read or written counts as absent: a replay never depends on it, and its run is the same with and without.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import pyarrow as pa

from engine import errors, jsonl
from engine.errors import GapscopeError
from engine.traces.compact import pack, replace_file, unpack
from engine.traces.tree import Trace

FOLDER = "compiled"
MOST_BYTES = 1 << 30
"""What the folder may hold; beyond it the traces go that were not used for longest."""


class TraceCache:
    """The compiled traces of a store. Nothing is written where there is no store yet."""

    def __init__(self, store: Path, most_bytes: int = MOST_BYTES) -> None:
        self.folder = Path(store) / FOLDER
        self._most_bytes = most_bytes

    def find(self, digest: str, read_as: Mapping[str, str], name: str) -> Trace | None:
        """The trace whose source has this SHA-256, read in this way; ``name`` is what a file of that name is called."""
        try:
            key = _key(digest, read_as)
            path = self._path(key)
            trace, head = unpack(path.read_bytes(), path)
            if head["key"] != key:
                return None
        except (OSError, GapscopeError, KeyError):
            return None
        with suppress(OSError):
            os.utime(path)  # the last use
        trace.name = trace.name or name
        return trace

    def keep(self, trace: Trace, name: str) -> None:
        """Keep a trace that was read from a file; one named after its file takes the ``name`` of the next."""
        if not self.folder.parent.is_dir():
            return
        with suppress(OSError, ValueError, OverflowError, pa.ArrowException):
            key = _key(trace.digest, trace.read_as)
            data = pack(replace(trace, name="") if trace.name == name else trace, {"key": key})
            if len(data) <= self._most_bytes:
                self.folder.mkdir(exist_ok=True)
                replace_file(self._path(key), data)
                self._make_room()

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.parquet"

    def _make_room(self) -> None:
        """Remove what was not used for longest until the rest is small enough."""
        files = []
        for path in self.folder.iterdir():
            with suppress(OSError):  # another process removed it
                status = path.stat()
                files.append((status.st_mtime_ns, path, status.st_size))
        left = sum(size for _, _, size in files)
        for _, path, size in sorted(files):
            if left <= self._most_bytes:
                return
            path.unlink(missing_ok=True)
            left -= size


def size_of(store: Path) -> tuple[int, int]:
    """How many files the compiled traces of a store are, and how many bytes."""
    sizes = []
    with suppress(OSError):
        for path in (Path(store) / FOLDER).iterdir():
            with suppress(OSError):
                sizes.append(path.stat().st_size)
    return len(sizes), sum(sizes)


def _key(digest: str, read_as: Mapping[str, str]) -> str:
    words = [digest, _version(), *(f"{name}={value}" for name, value in sorted(read_as.items()))]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:32]


@cache
def _version() -> str:
    """What the code that reads traces is: a change of it may change what becomes of a file."""
    digest = hashlib.sha256(sys.version.encode())
    for path in [Path(errors.__file__), Path(jsonl.__file__), *sorted(Path(__file__).parent.glob("*.py"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()
