"""Ctrl-C and SIGTERM in an event loop: they cancel what runs, or end it as it says, and raise nothing in its middle."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from engine.errors import Interrupted

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """What a signal does: cancel the task, or what :meth:`ending` names; a second one cancels in any case."""

    def __init__(self, cancel: Callable[[], object]) -> None:
        self.number: int | None = None
        """The signal that came last; None: none."""
        self.canceled = False
        """Whether one canceled the task."""
        self._task_cancel = cancel
        self._end: Callable[[], object] = self._cancel

    def _cancel(self) -> None:
        self.canceled = True
        self._task_cancel()

    def came(self, number: int) -> None:
        """A signal came."""
        self.number = number
        end, self._end = self._end, self._cancel
        end()

    @contextmanager
    def ending(self, end: Callable[[], object]) -> Iterator[None]:
        """While the block lasts, the first signal calls ``end``."""
        self._end = end
        try:
            yield
        finally:
            self._end = self._cancel


@dataclass(frozen=True)
class _Ended:
    """Raised in a task, an interrupt would be logged as one that nobody looked at: it is returned."""

    number: int


def run(main: Callable[[Interrupts], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in an event loop of its own; in the main thread, signals go to its :class:`Interrupts`.

    Raises:
        Interrupted: a signal canceled it.
    """
    done = asyncio.run(_guarded(main))
    if isinstance(done, _Ended):
        raise Interrupted(done.number)
    return done


async def _guarded(main: Callable[[Interrupts], Coroutine[Any, Any, T]]) -> T | _Ended:
    task = asyncio.current_task()
    assert task is not None
    interrupts = Interrupts(task.cancel)
    with _taken(interrupts):
        try:
            return await main(interrupts)
        except (asyncio.CancelledError, Exception):  # what was canceled may fail in ways of its own
            if not interrupts.canceled or interrupts.number is None:
                raise
            return _Ended(interrupts.number)


@contextmanager
def _taken(interrupts: Interrupts) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    with suppress(ValueError, RuntimeError, NotImplementedError):  # not in the main thread
        for number in SIGNALS:
            loop.add_signal_handler(number, partial(interrupts.came, number))
    try:
        yield
    finally:
        for number, handler in before.items():
            if loop.remove_signal_handler(number):
                signal.signal(number, handler)
