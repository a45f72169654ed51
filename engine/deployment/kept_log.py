"""What an engine's log says of its memory, kept beside the runs: the numbers, by the run that the engine served."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine.deployment.engine_log import SGLANG, VLLM, LoggedMemory
from engine.errors import GapscopeError

FOLDER = "memory_logs"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,80}")


def keep_memory_log(log: LoggedMemory, run_id: str, store: Path) -> Path:
    """Keep what a log says as that of a run; a former one is replaced. No line of the log is kept.

    Raises:
        GapscopeError: the store cannot be written, or that is no run id.
    """
    path = _path(store, run_id)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".new", delete=False, encoding="utf-8") as file:
            json.dump(asdict(log), file, indent=1, sort_keys=True)
        os.replace(file.name, path)
    except OSError as problem:
        raise GapscopeError(f"{path} cannot be written: {problem.strerror}.") from None
    return path


def kept_memory_log(run_id: str, stores: Sequence[Path]) -> LoggedMemory | None:
    """What is kept of the log of a run's engine, that of the last store first; None where nothing is.

    Raises:
        GapscopeError: the file is not what :func:`keep_memory_log` writes.
    """
    for store in reversed(stores):
        path = _path(store, run_id)
        if path.is_file():
            return _read(path)
    return None


def _path(store: Path, run_id: str) -> Path:
    if not _NAME.fullmatch(run_id):
        raise GapscopeError(f"{run_id!r:.80} is no run id.")
    return store / FOLDER / f"{run_id}.json"


def _read(path: Path) -> LoggedMemory:
    bad = GapscopeError(f"{path} does not hold what a log says of memory: give the engine's log again.")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise bad from None
    if not isinstance(record, Mapping) or record.get("engine") not in (VLLM, SGLANG):
        raise bad
    values, ranges = record.get("values"), record.get("ranges")
    if not isinstance(values, Mapping) or not isinstance(ranges, Mapping):
        raise bad
    counts = [record.get(name) for name in ("lines", "used")]
    pairs = {str(name): tuple(pair) for name, pair in ranges.items() if isinstance(pair, list)}
    if not all(isinstance(count, int) for count in counts) or len(pairs) != len(ranges):
        raise bad
    if not all(_number(value) for value in (*values.values(), *(v for pair in pairs.values() for v in pair))):
        raise bad
    if any(len(pair) != 2 for pair in pairs.values()):
        raise bad
    return LoggedMemory(record["engine"], dict(values), pairs, *counts)  # type: ignore[arg-type]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
