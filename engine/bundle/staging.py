"""The hidden folder in which a run is written, and the one step that publishes it.

The folder is locked (``flock``) for as long as its writer lives: the lock dies with the process, however it
dies, and that is how a stale folder is told from one that is being written.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from engine.errors import GapscopeError, UnwritableStore

PREFIX = ".writing-"


class Staging:
    """A hidden folder beside the runs, owned by this process until published or discarded."""

    def __init__(self, store: Path) -> None:
        store.mkdir(parents=True, exist_ok=True)
        self.store = store
        self._owner = os.getpid()
        while True:
            self.path = store / f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
            self.path.mkdir()
            with contextlib.suppress(FileNotFoundError):
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
                if _take(self._lock) and self.path.exists():
                    return
                os.close(self._lock)
            # A cleaner took the folder before it was locked: try again under another name.

    def publish(self, name: str) -> bool:
        """Make the folder visible as ``name``: whole, or not at all. False: a folder of that name is there already."""
        target = self.store / name
        os.fsync(self._lock)
        try:
            os.rename(self.path, target)
        except OSError as problem:
            if problem.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        os.close(self._lock)
        self._lock = -1
        fsync_folder(self.store)
        return True

    def discard(self) -> None:
        """Remove the folder if it is still hidden. A forked child leaves its parent's folder alone."""
        if self._lock < 0 or os.getpid() != self._owner:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1


@contextlib.contextmanager
def working_folder(store: Path) -> Iterator[Path]:
    """A hidden folder beside the runs for work on the way to one: it vanishes in the end, and after a crash.

    Raises:
        GapscopeError: the store cannot be written.
    """
    created = not store.exists()
    try:
        clean_stale(store)
        held = Staging(store)
    except OSError as problem:
        raise write_failed(store, problem) from problem
    try:
        yield held.path
    finally:
        held.discard()
        if created:
            with contextlib.suppress(OSError):
                store.rmdir()


def clean_stale(store: Path) -> list[Path]:
    """Remove the hidden folders of writers that no longer live; returns what was removed."""
    removed = []
    for path in sorted(store.glob(f"{PREFIX}*")) if store.is_dir() else []:
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if _take(lock):
                    shutil.rmtree(path)
                    removed.append(path)
            finally:
                os.close(lock)
    return removed


def fsync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_failed(store: Path, problem: OSError) -> GapscopeError:
    """The one sentence for a store that cannot take a run."""
    advice = {
        errno.ENOSPC: "free some space or choose another store",
        errno.EDQUOT: "free some of your quota or choose another store",
        errno.EROFS: "choose a store that can be written",
        errno.EACCES: "choose a store that you may write",
        errno.EPERM: "choose a store that you may write",
    }.get(problem.errno or 0, "choose another store")
    reason = os.strerror(problem.errno) if problem.errno else str(problem)
    return UnwritableStore(f"Cannot write a run into {store}: {reason}. Nothing was left there; {advice}.")


def _take(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
