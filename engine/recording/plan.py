"""What is to be recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.recording.listeners import Published
from engine.traces.prompts import HIGH, LOW


@dataclass(frozen=True)
class Plan:
    """What is to be recorded.

    ``knobs`` are complete client settings (``engine.knobs``). ``rows`` is where the server's recorder writes,
    ``published`` where the engine tells of itself. ``raw`` keeps the files of the recording.
    """

    url: str
    trace: Path
    knobs: Mapping[str, Any]
    name: str
    model: str | None = None
    title: str | None = None
    chat: bool = False
    read_as: Mapping[str, str] = field(default_factory=dict)
    rows: Path | None = None
    published: Published = field(default_factory=Published)
    raw: Path | None = None
    timeout_s: float = 600.0
    ids_from: int = LOW
    ids_below: int = HIGH
    keep_cache: bool = False
