"""The rows of requests, written as they come: what is over survives the program, and memory does not grow with it."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import orjson

from engine.errors import GapscopeError
from engine.recording.client.load import Exchange
from engine.recording.client.rows import request_row
from engine.recording.folder import REQUESTS


class Journal:
    """Writes ``requests.jsonl`` of a recording, in the order in which requests end, and counts what it wrote.

    ``started_ns`` is the start of the load, ``profile_start_s`` that of the profile from there (None: not yet known).
    ``primer_end_ns`` is the end of the last primer on the client's monotonic clock; None: there was none.

    Raises:
        GapscopeError: the file cannot be written; from every call.
    """

    def __init__(self, folder: Path) -> None:
        self.started_ns = 0
        self.profile_start_s: float | None = None
        self.rows = self.failed = self.canceled = 0
        self.first_error: str | None = None
        self.primer_end_ns: int | None = None
        self._folder = folder
        try:
            self._file = (folder / REQUESTS).open("wb")
        except OSError as error:
            raise self._refusal(error) from error

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
        except OSError as problem:
            raise self._refusal(problem) from problem

    def take(self, exchange: Exchange) -> None:
        """Write down a request that is over; the system has it when this returns."""
        answer = exchange.answer
        start_s = float("inf") if self.profile_start_s is None else self.profile_start_s
        try:
            self._file.write(orjson.dumps(request_row(exchange, self.started_ns, start_s)) + b"\n")
            self._file.flush()
        except OSError as error:
            raise self._refusal(error) from error
        self.rows += 1
        self.canceled += answer.status == "canceled"
        if answer.status == "error":
            self.failed += 1
            self.first_error = self.first_error or answer.error
        if exchange.primed and exchange.primed[0] == "primer":
            self.primer_end_ns = max(self.primer_end_ns or 0, answer.end_ns)

    def _refusal(self, error: OSError) -> GapscopeError:
        return GapscopeError(f"The recording cannot be written to {self._folder}: {error.strerror or error}.")
