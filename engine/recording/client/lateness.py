"""How late the client itself is: a client that cannot keep up measures itself."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

EVERY_S = 0.02


class Lateness:
    """Measures how much later than asked for the event loop gets to its work, and the processor time it takes."""

    def __init__(self) -> None:
        self._late_ns: list[int] = []
        self._task: asyncio.Task[None] | None = None
        self._before = os.times()
        self._began = time.monotonic()

    def start(self) -> None:
        """Begin; inside the event loop that is measured."""
        self._task = asyncio.get_running_loop().create_task(self._measure())
        self._before, self._began = os.times(), time.monotonic()

    async def _measure(self) -> None:
        while True:
            began = time.monotonic_ns()
            await asyncio.sleep(EVERY_S)
            self._late_ns.append(max(0, time.monotonic_ns() - began - round(EVERY_S * 1e9)))

    def end(self) -> dict[str, Any]:
        """Stop; returns ``lateness_ms`` (p50, p99, max) and ``cpu_share`` of one processor."""
        if self._task is not None:
            self._task.cancel()
        now, late = os.times(), sorted(self._late_ns) or [0]
        used = now.user + now.system - self._before.user - self._before.system
        at = {"p50": late[len(late) // 2], "p99": late[int(0.99 * (len(late) - 1))], "max": late[-1]}
        return {
            "lateness_ms": {name: round(value / 1e6, 3) for name, value in at.items()},
            "cpu_share": round(used / max(1e-9, time.monotonic() - self._began), 3),
        }
