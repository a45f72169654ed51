"""Listens to what an engine publishes while it is recorded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from engine.recording.server.fpm import FpmRecorder
from engine.recording.server.kv_events import KvEventRecorder
from engine.recording.server.listener import Listener

KV_RAW, FPM_RAW = "kv_raw.jsonl", "fpm_raw.jsonl"


@dataclass(frozen=True)
class Published:
    """Where an engine publishes; None: it does not. ``bind``: the engine connects to these addresses."""

    kv_events: str | None = None
    fpm: str | None = None
    kv_replay: str | None = None
    bind: bool = False

    def __bool__(self) -> bool:
        return self.kv_events is not None or self.fpm is not None


class Listening:
    """Writes what is published into ``folder`` while the block lasts; ``words`` says afterwards what came."""

    def __init__(self, folder: Path, published: Published) -> None:
        self.words: dict[str, str] = {}
        bind = published.bind or None
        self._listeners: dict[str, Listener] = {}
        if published.kv_events is not None:
            self._listeners["kv_events"] = KvEventRecorder(
                published.kv_events, folder / KV_RAW, bind=bind, replay=published.kv_replay
            )
        if published.fpm is not None:
            self._listeners["fpm"] = FpmRecorder(published.fpm, folder / FPM_RAW, bind=bind)

    def __enter__(self) -> Listening:
        for listener in self._listeners.values():
            listener.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, listener in self._listeners.items():
            self.words[name] = str(listener.stop().words)
