"""What both sides of LLMServingSim share: requests being read, their numbers in the workload, the other side."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from engine.bundle import Spool
from engine.importers.clients.span import Span
from engine.importers.contract import Options
from engine.intake import BadRows, InputFile

Row = TypeVar("Row")
TOOL = "LLMServingSim"
CHUNKS = ("request_id", "ordinal", "time_ns", "tokens", "visible")
STEP = 1_000
WORKLOAD = "the workload"
"""Both sides number the requests of one workload file."""


@dataclass
class Table:
    """The requests being read, and how often a row says twice what it says once."""

    requests: Spool
    chunks: Spool | None = None
    span: Span = field(default_factory=Span)
    ids: set[str] = field(default_factory=set)
    ends_apart: int = 0
    lengths_apart: int = 0
    models: dict[str, int] = field(default_factory=dict)


def take_all(
    table: Table,
    rows: Iterable[tuple[int, Row]],
    take: Callable[[Row], None],
    where: str,
    bad: BadRows,
    options: Options,
) -> None:
    """Have ``take`` put each row into the table; those that it refuses (ValueError) are bad rows."""
    for line, row in rows:
        try:
            take(row)
        except ValueError as error:
            bad.add(f"{where} line {line}", str(error))
        if table.requests.rows % STEP == 0:
            options.step(None, f"{table.requests.rows:,} requests")


def new_id(table: Table, request_id: str) -> str:
    """The id of a row.

    Raises:
        ValueError: it is empty or came before.
    """
    if request_id in table.ids or not request_id:
        raise ValueError(f"request {request_id!r:.40} comes twice" if request_id else "a request without an id")
    table.ids.add(request_id)
    return request_id


def source_of(request_id: str) -> dict[str, Any]:
    """The request's number in the workload, which both sides use."""
    digits = request_id.rpartition("-")[2]
    place = int(digits) if digits.isdigit() and len(digits) < 18 else None
    return {"request_id": request_id, "source_trace_id": WORKLOAD, "source_outer_index": place}


def pair(role: str, other: InputFile | None) -> dict[str, Any]:
    """The side of a run and the file of the other, for its lineage."""
    return {"role": role, "other": {"file": other.base, "sha256": other.sha256} if other else None}
