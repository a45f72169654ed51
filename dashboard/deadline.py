"""Time limits for calls that another thread can interrupt.

One thread watches all of them: starting a timer thread per query costs more than most queries.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import Protocol

TICK_S = 0.02
"""How often running calls are looked at; a limit is overrun by this much at most."""


class Interruptible(Protocol):
    """Something that stops its running call when told from another thread."""

    def interrupt(self) -> None:
        """Stop the running call."""


_running: dict[int, tuple[float, Interruptible]] = {}
_some = Event()
_lock = Lock()
_thread: Thread | None = None


def _watch() -> None:
    while True:
        _some.wait()
        time.sleep(TICK_S)
        now = time.monotonic()
        with _lock:  # held while interrupting, so that no call is interrupted after its block
            for deadline, call in _running.values():
                if now >= deadline:
                    call.interrupt()
            if not _running:
                _some.clear()


@contextmanager
def limited(call: Interruptible, seconds: float) -> Iterator[None]:
    """Interrupt ``call`` if the block takes longer than ``seconds``."""
    global _thread
    key = id(call)
    with _lock:
        _running[key] = (time.monotonic() + seconds, call)
        _some.set()
        if _thread is None or not _thread.is_alive():
            _thread = Thread(target=_watch, name="query time limits", daemon=True)
            _thread.start()
    try:
        yield
    finally:
        with _lock:
            del _running[key]
