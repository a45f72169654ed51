"""Listens to what an engine publishes while it is recorded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from engine.recording.server.fpm import FpmRecorder
from engine.recording.server.kv_events import KvEventRecorder
from engine.recording.server.listener import Listener

KV_RAW, FPM_RAW = "kv_raw-{}.jsonl", "fpm_raw-{}.jsonl"
"""Names of what is written, by number of the address."""


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
        for listener in self._listeners:
            listener.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for listener in self._listeners:
            self.words[listener.path.name] = str(listener.stop().words)
