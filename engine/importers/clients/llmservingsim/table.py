"""What both sides of LLMServingSim share: requests being read, their numbers in the workload, the other side."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine.bundle import Spool
from engine.importers.clients.span import Span
from engine.intake import InputFile

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
    return {"role": role, "other": {"file": other.name, "sha256": other.sha256} if other else None}
