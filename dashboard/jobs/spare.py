"""A worker that is ready before a job is: reading its libraries takes longer than a short replay.

The server keeps one at most. It waits for the folder of a job on its standard input, does that job like any other
worker, and ends; the next one is started when a page that can ask for jobs is drawn. It ends as well when the server
is gone or nobody asks for long. A job that finds none, or one that died, gets a worker of its own.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import RLock, Timer

COMMAND = (sys.executable, "-m", "dashboard.jobs.worker", "--spare")
AFTER_S = 1.0
"""The page that asks for one is drawn first."""
IDLE_S = 1200.0
"""It holds the memory of its libraries for so long."""
MOST_DEATHS = 3
"""Spares that died in a row, after which none is started."""

_log = logging.getLogger("gapscope.jobs")
_lock = RLock()
_kept = False
_deaths = 0
_spare: subprocess.Popen[bytes] | None = None
_timer: Timer | None = None


def keep() -> None:
    """Say that this process serves pages: from now on it may have a spare."""
    global _kept
    _kept = True


def ready(after_s: float = AFTER_S) -> None:
    """See to it that a spare gets ready, where this process keeps one and has none."""
    with _lock:
        if _kept and _alive() is None and _timer is None and _deaths < MOST_DEATHS:
            _later(after_s, _start)


def take(folder: Path) -> bool:
    """Hand a job to the spare; False where there is none."""
    global _spare, _deaths
    with _lock:
        found = _alive()
        if found is None or found.stdin is None:
            return False
        _no_timer()
        _spare = None
        try:
            found.stdin.write(f"{folder}\n".encode())
            found.stdin.close()
        except OSError:
            _died(found)
            return False
        _deaths = 0
        return True


def end() -> None:
    """End the spare, where there is one, and start none before :func:`ready` is called again."""
    global _spare
    with _lock:
        _no_timer()
        found, _spare = _spare, None
    if found is not None and found.stdin is not None:
        found.stdin.close()  # which ends it
        found.wait()


def pid() -> int | None:
    """The process id of the spare; None where there is none."""
    with _lock:
        found = _alive()
        return None if found is None else found.pid


def _alive() -> subprocess.Popen[bytes] | None:
    """The spare, unless it died."""
    global _spare
    if _spare is not None and _spare.poll() is not None:
        found, _spare = _spare, None
        _no_timer()
        _died(found)
    return _spare


def _died(found: subprocess.Popen[bytes]) -> None:
    global _deaths
    _deaths += 1
    _log.warning("A worker kept ready for the next job died (status %s); jobs start their own.", found.poll())


def _start() -> None:
    """Start one, in a session of its own: with a job in its hands it outlives this server."""
    global _spare
    with _lock:
        _no_timer()
        root = Path(__file__).resolve().parents[1]
        try:
            _spare = subprocess.Popen(
                COMMAND, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=root, start_new_session=True
            )
        except OSError as error:
            _log.warning("No worker could be kept ready for the next job: %s.", error.strerror)
            return
        _later(IDLE_S, end)


def _later(after_s: float, do: Callable[[], None]) -> None:
    global _timer
    _timer = Timer(after_s, do)
    _timer.daemon = True
    _timer.start()


def _no_timer() -> None:
    global _timer
    if _timer is not None:
        _timer.cancel()
    _timer = None
