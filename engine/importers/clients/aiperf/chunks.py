"""Times of single chunks, many of them: collected as columns, up to a number that can still be sorted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from engine.bundle import Spool
from engine.importers.clients.aiperf.records import Record
from engine.importers.clients.aiperf.streams import Response
from engine.importers.clients.aiperf.tags import NS_PER_MS

MOST = 2_000_000
_BATCH = 50_000
_COLUMNS = ("request_id", "ordinal", "time_ns", "tokens", "visible")


class Chunks:
    """The table ``chunks`` of a run. ``spool`` is None where there are none, or more than MOST of them."""

    def __init__(self, scratch: Path) -> None:
        self._spool = Spool("chunks", _COLUMNS, scratch)
        self._ids: list[str] = []
        self._parts: list[tuple[np.ndarray[Any, Any], ...]] = []
        self._held = 0
        self.count = 0

    def add_response(self, request_id: str, start_ns: int | None, raw: Response, tokens: int | None) -> None:
        """The chunks of a response that was kept."""
        if start_ns is None or not raw.chunks:
            return
        times = start_ns + np.array([after for after, _ in raw.chunks], np.int64)
        self._add(request_id, times, np.array([content for _, content in raw.chunks]), tokens)

    def add_gaps(self, request_id: str, first_ns: int | None, record: Record, tokens: int | None) -> None:
        """Chunks with content, from the time of the first and the gaps between them."""
        gaps = record.gaps_ms
        if first_ns is None or gaps is None or not record.gaps_usable:
            return
        if self.count + len(gaps) + 1 > MOST:
            self._drop(len(gaps) + 1)
            return
        after = np.concatenate([[0.0], np.cumsum(gaps)]) * NS_PER_MS
        self._add(request_id, first_ns + np.rint(after).astype(np.int64), np.ones(len(after), bool), tokens)

    def _drop(self, chunks: int) -> None:
        """Keep none of them any more: there are too many."""
        self.count += chunks
        self._ids, self._parts, self._held = [], [], 0

    def _add(self, request_id: str, times: Any, visible: Any, tokens: int | None) -> None:
        if self.count + len(times) > MOST:
            self._drop(len(times))
            return
        self.count += len(times)
        contents = int(visible.sum())
        # As many chunks with content as tokens: each is one token. Otherwise nobody knows which has how many.
        each = np.where(visible, 1.0, 0.0) if contents == tokens else np.where(visible, np.nan, 0.0)
        self._ids += [request_id] * len(times)
        self._parts.append((np.arange(len(times)), times, each, visible))
        self._held += len(times)
        if self._held >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        if not self._held:
            return
        ordinal, times, tokens, visible = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        unknown = np.isnan(tokens)
        columns = {
            "request_id": pa.array(self._ids, pa.string()),
            "ordinal": pa.array(ordinal),
            "time_ns": pa.array(times),
            "tokens": pa.array(np.where(unknown, 0, tokens).astype(np.int64), mask=unknown),
            "visible": pa.array(visible),
        }
        self._spool.extend(pa.table(columns))
        self._ids, self._parts, self._held = [], [], 0

    @property
    def spool(self) -> Spool | None:
        """The collected rows."""
        if self.count > MOST:
            return None
        self._flush()
        return self._spool if self._spool.rows else None
