"""The rows of AISimulate's requests as requests and admissions of a bundle; milliseconds become nanoseconds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from engine.bundle import Spool
from engine.importers.clients import flags
from engine.importers.clients.times import times
from engine.importers.clients.values import count, dig, mapping, ns, text
from engine.importers.clients.within import Spans
from engine.importers.contract import Options
from engine.intake import BadRows, InputFile, Intake, json_rows
from engine.intake.rows import number

STATUS = {"completed": "ok", "rejected": "rejected", "canceled": "canceled", "cancelled": "canceled", "failed": "error"}
_PHASE = {"primer": "primer", "warmup": "warmup", "profile": "profile"}
_COLUMNS = [
    "request_id",
    "conversation_id",
    "turn_index",
    "play_id",
    "phase",
    "status",
    "tool_status",
    "flags",
    "error_type",
    "worker_id",
    "dp_rank",
    "scheduled_ns",
    "dispatched_ns",
    "first_admit_ns",
    "first_visible_ns",
    "last_visible_ns",
    "end_ns",
    "input_tokens",
    "requested_output_tokens",
    "output_tokens",
    "cached_tokens",
    "preemptions",
]
_ADMISSIONS = ("request_id", "ordinal", "time_ns", "worker_id", "dp_rank", "cached_tokens", "is_readmission")
_STEP = 5_000


@dataclass
class Table:
    """The requests being read; values in milliseconds as the report has them, of completed requests."""

    requests: Spool
    admissions: Spool
    ids: set[str] = field(default_factory=set)
    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    totals: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    statuses: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    spans: Spans = field(default_factory=Spans)
    """Completed requests of the profile."""
    last_ns: int = 0
    first_ns: int = 0
    tpot_apart: int = 0
    readmissions_apart: int = 0


def _ms(value: Any) -> int | None:
    found = number(value)
    return None if found is None else ns(found / 1e3)


def read_rows(file: InputFile, bad: BadRows, intake: Intake, options: Options) -> Table:
    """Every row of the file."""
    table = Table(Spool("requests", _COLUMNS, intake.scratch), Spool("admissions", _ADMISSIONS, intake.scratch))
    for line, row in json_rows(file, bad):
        request_id = text(row.get("request_id")) or text(row.get("uuid"))
        status = STATUS.get(str(row.get("terminal_status")))
        if request_id is None or status is None:
            what = "neither request_id nor uuid" if request_id is None else "no terminal_status that is known"
            bad.add(f"{file.name} line {line}", what)
            continue
        if request_id in table.ids:
            bad.add(f"{file.name} line {line}", f"request {request_id!r:.60} comes twice")
            continue
        table.ids.add(request_id)
        _take(table, request_id, status, row)
        if table.requests.rows % _STEP == 0:
            options.step(None, f"{table.requests.rows:,} requests")
    return table


def _take(table: Table, request_id: str, status: str, row: dict[str, Any]) -> None:
    arrival, sent = _ms(row.get("arrival_time_ms")), _ms(row.get("dispatched_at_ms"))
    end = _ms(row.get("terminal_time_ms"))
    output = count(row.get("output_length"))
    answered = status == "ok" and bool(output)
    first, last = ((_ms(row.get(key)) if answered else None) for key in ("first_token_ms", "last_token_ms"))
    # Rows of a session without a dispatch of their own are sent when they arrive.
    found, wrong = times(arrival if sent is None else sent, first, last, end)
    noticed = [*wrong, *([flags.ZERO_OUTPUT] if status == "ok" and output == 0 else [])]
    admissions = list(_admissions(request_id, row))
    for admission in admissions:
        table.admissions.append(admission)
    routed = row.get("routing_history")
    place = mapping(routed[-1]) if isinstance(routed, list) and routed else {}
    worker = count(row.get("decode_worker_idx"))
    readmitted = sum(bool(admission["is_readmission"]) for admission in admissions)
    stated = count(row.get("readmission_count"))
    table.readmissions_apart += stated is not None and bool(admissions) and stated != readmitted
    table.requests.append(
        {
            **found,
            "request_id": request_id,
            "conversation_id": text(row.get("session_id")),
            "turn_index": count(row.get("turn_index")),
            "play_id": text(row.get("play_id")),
            "phase": _PHASE.get(str(dig(row, "metadata", "agentic_phase")), "profile"),
            "status": status,
            "tool_status": text(row.get("terminal_status")),
            "flags": flags.joined(noticed),
            "error_type": "failed" if status == "error" else None,
            "worker_id": None if worker is None else str(worker),
            "dp_rank": count(place.get("dp_rank")),
            "scheduled_ns": arrival,
            "first_admit_ns": _ms(row.get("first_admit_ms")),
            "input_tokens": count(row.get("input_length")),
            "requested_output_tokens": count(row.get("requested_output_length")),
            "output_tokens": output,
            "cached_tokens": _cached(row, admissions),
            "preemptions": readmitted if stated is None else stated,
        }
    )
    known = [t for t in (found["dispatched_ns"], found["last_visible_ns"], end) if t is not None]
    table.last_ns = max(table.last_ns, *known, 0)
    table.first_ns = min(table.first_ns, *known, 0)
    if status == "ok" and found["dispatched_ns"] is not None and found["dispatched_ns"] >= 0:
        table.spans.take(request_id, found["dispatched_ns"] / 1e9, None if end is None else end / 1e9)
    _gather(table, row, status, output, _cached(row, admissions))


def _admissions(request_id: str, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    history = row.get("admission_history")
    routed = row.get("routing_history")
    workers = {
        text(dig(entry, "pool")): (dig(entry, "logical_worker_id"), count(dig(entry, "dp_rank")))
        for entry in (routed if isinstance(routed, list) else [])
    }
    for place, entry in enumerate(history if isinstance(history, list) else []):
        at = _ms(dig(entry, "at_ms"))
        if at is None:
            continue
        ordinal = count(dig(entry, "admission_ordinal"))
        worker, rank = workers.get(text(dig(entry, "pool")), (None, None))
        yield {
            "request_id": request_id,
            "ordinal": place if ordinal is None else ordinal,
            "time_ns": at,
            "worker_id": text(worker),
            "dp_rank": rank,
            "cached_tokens": count(dig(entry, "reused_input_tokens")),
            "is_readmission": bool(dig(entry, "is_readmission")),
        }


def _cached(row: dict[str, Any], admissions: list[dict[str, Any]]) -> int | None:
    """Tokens reused at the first admission; ``reused_input_tokens`` is the most of any, the same with one only."""
    parts = [count(row.get(f"first_admission_{tier}_reused_input_tokens")) for tier in ("g1", "host")]
    if parts != [None, None]:
        return sum(part or 0 for part in parts)
    if admissions and admissions[0]["cached_tokens"] is not None:
        return int(admissions[0]["cached_tokens"])
    return count(row.get("reused_input_tokens")) if count(row.get("admission_count")) in (None, 0, 1) else None


def _gather(table: Table, row: dict[str, Any], status: str, output: int | None, cached: int | None) -> None:
    """What the report's figures are made of."""
    table.statuses[status] += 1
    table.totals["num_requests"] += 1
    if status != "ok":
        return
    totals = table.totals
    totals["completed_requests"] += 1
    totals["total_input_tokens"] += count(row.get("input_length")) or 0
    totals["total_output_tokens"] += output or 0
    totals["reused_tokens"] += count(row.get("reused_input_tokens")) or 0
    totals["first_reused_tokens"] += cached or 0
    for name, key in (("ttft", "ttft_ms"), ("ttst", "ttst_ms"), ("tpot", "itl_ms"), ("e2e_latency", "e2e_latency_ms")):
        value = number(row.get(key))
        if value is not None:
            table.values[name].append(value)
    first, last, tpot = (number(row.get(key)) for key in ("first_token_ms", "last_token_ms", "itl_ms"))
    if first is not None and last is not None and tpot is not None and output and output > 1:
        table.tpot_apart += abs((last - first) / (output - 1) - tpot) > 1e-6 * max(1.0, abs(tpot))
