"""The recording scheduler that goes off and on by turns: the server's side of ``benchmarks.record_overhead``.

In one server, under one load, a few passes at a time: what else the machine does hits every setting alike.
"""

import json
import os
import time
from typing import Any

from vllm_scheduler import RecordingScheduler, WorkerTime

SETTINGS = ("off", "without statistics", "on")
PASSES = 30


class InterleavedScheduler(RecordingScheduler):
    """Notes the period of each pass (end to end) with the setting it ran under."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._turn_writer, self._turn_worker = self._rec_writer, WorkerTime()
        self._turn_path = os.environ["GAPSCOPE_OVERHEAD"]
        self._turn_periods: list[tuple[int, int, int]] = []
        self._turn_count, self._turn_end = 0, 0
        self._turn("off")

    def _turn(self, setting: str) -> None:
        self._turn_setting = setting
        self._rec_writer = None if setting == "off" else self._turn_writer
        self._rec_stats = setting == "on"
        self._rec_worker = self._turn_worker if setting == "on" else None

    def add_request(self, request: Any) -> Any:
        """Arrivals are always noted: later passes need them."""
        kept, self._rec_writer = self._rec_writer, self._turn_writer
        try:
            return super().add_request(request)
        finally:
            self._rec_writer = kept

    def update_from_output(self, output: Any, *args: Any, **kwargs: Any) -> Any:
        """One pass more; after a few of them another setting."""
        result = super().update_from_output(output, *args, **kwargs)
        now = time.monotonic_ns()
        members = len(output.num_scheduled_tokens)
        decodes = members if output.total_num_scheduled_tokens == members else 0
        self._turn_periods.append((now - self._turn_end, members, decodes))
        self._turn_count += 1
        if self._turn_count % PASSES == 0:
            block = self._turn_count // PASSES
            row = {"block": block - 1, "setting": self._turn_setting, "passes": self._turn_periods}
            with open(self._turn_path, "a") as file:
                file.write(json.dumps(row) + "\n")
            self._turn_periods = []
            rounds, place = divmod(block, len(SETTINGS))
            self._turn(SETTINGS[(place + rounds) % len(SETTINGS)])  # each setting in each place
            now = time.monotonic_ns()
        self._turn_end = now
        return result
