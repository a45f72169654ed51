"""Records the ForwardPassMetrics that Dynamo's instrumented schedulers publish, one port per data-parallel rank."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import orjson

from engine.errors import GapscopeError
from engine.importers.fpm.records import flat
from engine.importers.messages import one_message
from engine.recording.server.listener import Listener, Malformed, Row
from engine.recording.server.sequence import Ledger

DEFAULT_PORT = 20380
"""Where rank 0 publishes (DYN_FORWARDPASS_METRIC_PORT); rank n at the port n above."""


class FpmRecorder(Listener):
    """Writes records in a recorder's envelope, as ``gapscope import`` reads them; the account goes beside the file."""

    def __init__(self, endpoint: str, path: Path, topic: str = "", bind: bool | None = False) -> None:
        super().__init__(endpoint, path, topic, bind)
        self._told: list[Row] = []

    def decode(self, payload: bytes, seq: int, received_ns: int) -> tuple[str, dict[str, Any], int]:
        """Who publishes, and the record as it came."""
        try:
            record = one_message(payload)
            row, _ = flat(record)
        except ValueError as error:
            raise Malformed(f"number {seq}: {error}") from error
        wall_ns = time.time_ns() - time.monotonic_ns() + received_ns
        return f"{row[3]}/{row[4]}", {"received_at_ns": wall_ns, "wire_counter": seq, "metrics": record}, 1

    def tell(self, row: Row) -> None:
        """Keep it for the file beside: the stream itself is to be read as it is."""
        self._told.append(row)

    @property
    def ledger_path(self) -> Path:
        """Where gaps and the account go."""
        return self.path.with_suffix(".ledger.json")

    def close(self) -> Ledger:
        """Close the file and write the account beside it."""
        was_open = self._file is not None
        ledger = super().close()
        if was_open:
            try:
                self.ledger_path.write_bytes(orjson.dumps({"told": self._told}, option=orjson.OPT_INDENT_2))
            except OSError as error:
                raise GapscopeError(f"{self.ledger_path} cannot be written: {error.strerror or error}.") from error
        return ledger
