"""Rows on their way into a file: conforming, in order, in groups, and unlike each other where they must be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import pyarrow as pa

from engine.bundle import columns
from engine.bundle.ledger import Outcomes, count_outcomes
from engine.errors import GapscopeError

ROW_GROUP = 122_880  # rows; a multiple of DuckDB's vector, and its own row group
MAX_GROUP_BYTES = 1 << 28

Rows: TypeAlias = "pa.Table | pa.RecordBatch | pa.RecordBatchReader | Iterable[pa.RecordBatch]"


class TableChecks:
    """What no single row group can tell: the outcomes of all requests, and ids that repeat."""

    def __init__(self, name: str) -> None:
        self._requests = name == "requests"
        self.outcomes: Outcomes = Outcomes()
        self._ids: set[str] = set()

    def take(self, batch: pa.RecordBatch) -> None:
        """Look at the next rows.

        Raises:
            GapscopeError: a request without id or status, or an id that occurred before.
        """
        if not self._requests:
            return
        for column in ("request_id", "status"):
            if batch.column(column).null_count:
                raise GapscopeError(f"Table requests, column {column}: NULL where every row needs a value.")
        self.outcomes += count_outcomes(batch)
        for request_id in batch.column("request_id").to_pylist():
            if request_id in self._ids:
                raise GapscopeError(f"Table requests, column request_id: {request_id!r} occurs twice.")
            self._ids.add(request_id)


def ordered(name: str, rows: Rows) -> Iterator[pa.Table]:
    """Conforming pieces in order: a table is sorted where it is not, a stream must be.

    Raises:
        GapscopeError: what does not conform, or the first row of a stream that is out of order.
    """
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        yield columns.sort(name, columns.conform(name, rows))
        return
    keys = columns.spec_of(name).sorted_by
    last: pa.Table | None = None
    before = 0
    for batch in rows:
        piece = columns.conform(name, pa.Table.from_batches([batch]))
        if not piece.num_rows:
            continue
        joined = piece.select(keys) if last is None else pa.concat_tables([last, piece.select(keys)])
        wrong = columns.first_unsorted(name, joined)
        if wrong is not None:
            row = before + wrong - (last is not None)
            raise GapscopeError(
                f"Table {name}: row {row} is out of order; a stream must arrive sorted by {', '.join(keys)}."
            )
        last, before = piece.select(keys).slice(piece.num_rows - 1), before + piece.num_rows
        yield piece


def row_groups(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in groups of ROW_GROUP (the last one is smaller), however they arrived."""
    held: list[pa.Table] = []
    rows = 0
    for piece in pieces:
        held.append(piece)
        rows += piece.num_rows
        if rows >= ROW_GROUP:
            whole = pa.concat_tables(held)
            full = rows - rows % ROW_GROUP
            for start in range(0, full, ROW_GROUP):
                yield from _bounded(whole.slice(start, ROW_GROUP))
            held, rows = [whole.slice(full)], rows - full
    if rows:
        yield from _bounded(pa.concat_tables(held))


def _bounded(group: pa.Table) -> Iterator[pa.Table]:
    """The group, in halves while it is too large for the 32-bit offsets of one batch (long member lists)."""
    if group.nbytes <= MAX_GROUP_BYTES or group.num_rows < 2:
        yield group
        return
    half = group.num_rows // 2
    yield from _bounded(group.slice(0, half))
    yield from _bounded(group.slice(half))
