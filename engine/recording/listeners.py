"""Listens to what an engine publishes while it is recorded."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from engine.errors import GapscopeError
from engine.recording.server.fpm import FpmRecorder
from engine.recording.server.kv_events import KvEventRecorder
from engine.recording.server.listener import Listener

KV_RAW, FPM_RAW = "kv_raw-{}.jsonl", "fpm_raw-{}.jsonl"
"""Names of what is written, by number of the address."""
CONNECTED_WITHIN_S = 10.0
LOOK_EVERY_S = 0.1


@dataclass(frozen=True)
class Published:
    """Where an engine publishes, an address for each rank. ``bind``: the engine connects to these addresses."""

    kv_events: tuple[str, ...] = ()
    fpm: tuple[str, ...] = ()
    kv_replay: str | None = None
    bind: bool = False

    def __bool__(self) -> bool:
        return bool(self.kv_events or self.fpm)


class Listening:
    """Writes what is published into ``folder`` while the block lasts; ``words`` says afterwards what came."""

    def __init__(self, folder: Path, published: Published) -> None:
        self.words: dict[str, str] = {}
        bind = published.bind or None
        self._listeners: list[Listener] = [
            KvEventRecorder(address, folder / KV_RAW.format(n), bind=bind, replay=published.kv_replay)
            for n, address in enumerate(published.kv_events)
        ]
        self._listeners += [
            FpmRecorder(address, folder / FPM_RAW.format(n), bind=bind) for n, address in enumerate(published.fpm)
        ]

    def __enter__(self) -> Listening:
        for number, listener in enumerate(self._listeners):
            try:
                listener.start()
            except GapscopeError:
                for started in self._listeners[:number]:
                    started.stop()
                raise
        return self

    async def connected(self) -> None:
        """Wait until each publisher is there and knows what is subscribed: what it sent before nobody hears.

        Raises:
            GapscopeError: one is not for :data:`CONNECTED_WITHIN_S`.
        """
        until = time.monotonic() + CONNECTED_WITHIN_S
        for listener in self._listeners:
            while not listener.connected.is_set():
                if time.monotonic() > until:
                    other = "without --bind" if listener.bind else "with --bind, if the engine connects to it"
                    raise GapscopeError(
                        f"Nobody publishes at {listener.endpoint}: expected the address at which the engine does "
                        f"({other}). Nothing of the load was sent."
                    )
                await asyncio.sleep(LOOK_EVERY_S)
        await asyncio.sleep(LOOK_EVERY_S if self._listeners else 0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for listener in self._listeners:
            self.words[listener.path.name] = str(listener.stop().words)
