"""Large runs prepared in the background of a server: one process a store, at idle priority, its progress in a file.

``python -m dashboard.preparing``, as ``gapscope serve`` starts it, works on the stores of the environment until all is
done or its standard input ends, which it does with the server. A second server of the same store starts one that ends
at once.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboard import jobs
from dashboard.kept.derived import FOLDER
from dashboard.kept.sweep import sweep
from dashboard.prepare import large_runs, prepare
from dashboard.store import Store
from engine.errors import GapscopeError
from engine.stores import default_stores

STATE, LOCK = "preparing.json", "preparing.lock"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the preparation of a store is: ``done`` of ``runs``, and what it does now of which run."""

    done: int
    runs: int
    run_id: str
    words: str

    @property
    def sentence(self) -> str:
        """In a sentence."""
        return (
            f"Large runs are prepared in the background: {self.done} of {self.runs} done, now {self.run_id}, "
            f"{self.words}. Until then a first look at them takes longer."
        )


_begun: list[subprocess.Popen[bytes]] = []  # held, as their standard input ends with this process


def begin(store: Store) -> None:
    """Start the process that prepares the stores of the environment, where ``store``, which has them, holds large runs
    or files that are kept of some."""
    if store.roots and ((store.roots[-1] / FOLDER).is_dir() or large_runs(store)):
        command = [sys.executable, "-m", "dashboard.preparing"]
        _begun.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
        )


def progress(root: Path) -> Progress | None:
    """How far the preparation of the store is that keeps its files in this root; None where none is under way."""
    told = jobs.read_json(root / FOLDER / STATE)
    if told is None or not jobs.is_alive(told["worker"]):
        return None
    return Progress(int(told["done"]), int(told["runs"]), str(told["run_id"]), str(told["words"]))


def work(roots: list[Path]) -> None:
    """Prepare every large run of the stores and sweep what is kept of runs that are gone; one process at a time."""
    folder = roots[-1] / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder / LOCK) as alone:
            if alone:
                _all(roots, folder / STATE)
    except OSError:
        return  # a store that cannot be written: nothing can be kept


def _all(roots: list[Path], state: Path) -> None:
    worker: dict[str, Any] = {"pid": os.getpid(), "start": jobs.start_ticks(os.getpid())}
    try:
        looked = Store(roots)
        sweep(looked.catalog)
        runs = large_runs(looked)
        for done, run_id in enumerate(runs):

            def told(words: str, done: int = done, run_id: str = run_id) -> None:
                now = {"worker": worker, "done": done, "runs": len(runs), "run_id": run_id, "words": words}
                jobs.write_json(state, now)

            store = Store(roots, preparing=True)  # one for each run: what it holds in memory goes with it
            with suppress(GapscopeError):  # the page that shows the run says what is wrong with it
                told("reading it")
                prepare(store, run_id, told)
            sweep(store.catalog)  # the digests of this one were looked at
            store.close()
    finally:
        state.unlink(missing_ok=True)


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Whether this process is the only one in the block, of all that name the same file."""
    with open(path, "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def _idle() -> None:
    """Take only what nobody else wants of the machine."""
    os.nice(19)
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _end_with_server() -> None:
    """Wait for the end of standard input, which the server holds, and end at once: files are written whole or not."""
    while os.read(0, 4096):  # not through a buffer, whose lock would be held when this process ends by itself
        pass
    os._exit(0)


if __name__ == "__main__":
    _idle()
    threading.Thread(target=_end_with_server, daemon=True).start()
    work(default_stores())
