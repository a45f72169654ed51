"""The arrays of vLLM's details as rows of ``requests`` and ``chunks``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.importers.clients import flags
from engine.importers.clients.bench import are_gaps, gaps
from engine.importers.clients.framing import Framing, framing_of
from engine.importers.clients.run import ClientRun
from engine.importers.clients.times import durations, times
from engine.importers.clients.values import count, ns
from engine.importers.contract import Options
from engine.intake.rows import number

ARRAYS = ("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "errors")
COLUMNS = [
    "request_id",
    "phase",
    "status",
    "tool_status",
    "flags",
    "error_type",
    "error_message",
    "scheduled_ns",
    "dispatched_ns",
    "first_visible_ns",
    "last_visible_ns",
    "end_ns",
    "first_visible_after_ns",
    "last_visible_after_ns",
    "end_after_ns",
    "input_tokens",
    "output_tokens",
]
CHUNKS = ("request_id", "ordinal", "time_ns", "after_ns", "tokens", "visible")


@dataclass
class Totals:
    """What the rows add up to, in the tool's own terms."""

    ttft: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    e2el: list[float] = field(default_factory=list)
    ok: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    spans: list[tuple[float, float]] = field(default_factory=list)


def framing_in(chat: bool, held: Mapping[str, list[Any]]) -> Framing:
    """What stands around the content; without gaps nothing does that could be taken off."""
    if "itls" not in held:
        return Framing(False, None)
    pairs = zip(held.get("output_lens", []), held["itls"], strict=False)
    counted = ((count(length), gaps(values)) for length, values in pairs)
    return framing_of(chat, [(tokens, len(list_)) for tokens, list_ in counted if tokens and list_ is not None])


def read_rows(
    held: Mapping[str, list[Any]], framing: Framing, run: ClientRun, rows: Totals, where: str, options: Options
) -> None:
    """Fill the run's tables and ``rows`` from the arrays; times are seconds on a clock of the process."""
    total = len(held["ttfts"])
    nothing: list[Any] = [None] * total
    columns = [held.get(name, nothing) for name in ARRAYS]
    starts = [number(value) for value in held.get("start_times", nothing)]
    run.origin_ns = min((found for start in starts if (found := ns(start)) is not None), default=0)
    for place, values in enumerate(zip(*columns, strict=True)):
        row = dict(zip(ARRAYS, values, strict=True))
        problem = _problem(row)
        if problem:
            run.bad.add(f"{where} request {place}", problem)
            continue
        _request(str(place), row, framing, run, rows)
        if place % 2000 == 0:
            options.step(place / total, f"{place:,} of {total:,} requests")


def _problem(row: Mapping[str, Any]) -> str | None:
    if row["output_lens"] is not None and count(row["output_lens"]) is None:
        return f"output_lens is {row['output_lens']!r:.40}, expected a count"
    for name in ("ttfts", "latencies", "start_times"):
        if row[name] is not None and not isinstance(row[name], int | float):
            return f"{name} is {row[name]!r:.40}, expected seconds"
    if not are_gaps(row["itls"]):
        return "itls holds something else than gaps in seconds"
    if row["errors"] is not None and not isinstance(row["errors"], str):
        return f"errors is {row['errors']!r:.40}, expected text"
    return None


def _request(request_id: str, given: Mapping[str, Any], framing: Framing, run: ClientRun, rows: Totals) -> None:
    assert run.requests is not None
    start, ttft, latency = (number(given[name]) for name in ("start_times", "ttfts", "latencies"))
    row: dict[str, Any] = {
        "request_id": request_id,
        "phase": "profile",
        "input_tokens": count(given["input_lens"]),
    }
    waited = number(given["queue_times"])
    if start is not None:
        row["dispatched_ns"] = ns(start)
        row["scheduled_ns"] = ns(start - waited) if waited is not None and waited >= 0 else None
    if given["errors"]:
        rows.failed += 1
        kind = given["errors"].partition(":")[0].strip()[:80] or "error"
        message = {"error_type": kind, "error_message": given["errors"][:1000]}
        run.requests.append({**row, "status": "error", "tool_status": "error", **message})
        return
    between, tokens = gaps(given["itls"]), count(given["output_lens"])
    if latency is None and ttft is not None and between is not None:
        latency = ttft + sum(between)
    _own_terms(rows, row["input_tokens"], tokens, ttft, between, latency, start)
    row |= {"status": "ok", "tool_status": "success", "output_tokens": tokens}
    noticed: set[str] = set()
    if not tokens:
        noticed.add(flags.ZERO_OUTPUT if tokens == 0 else flags.NO_TOKEN_COUNT)
        first = last = None
    else:
        first, last = _content(ttft, between, latency, tokens, framing, noticed)
        _chunks(run, request_id, start, ttft, between, tokens, framing)
    found, wrong = _placed(start, first, last, latency)
    run.requests.append({**row, **found, "flags": flags.joined((*noticed, *wrong))})


def _content(
    ttft: float | None,
    between: list[float] | None,
    latency: float | None,
    tokens: int,
    framing: Framing,
    noticed: set[str],
) -> tuple[float | None, float | None]:
    """First and last content in seconds since dispatch."""
    if ttft is None:
        return None, None
    if between is None:  # the gaps of this response are no numbers, or the file keeps none
        return (None, None) if framing.role else (ttft, None if framing.finish else latency)
    found = framing.content(len(between), tokens)
    noticed |= found.noticed
    if found.first is None or found.last is None:
        return None, None
    return ttft + sum(between[: found.first]), ttft + sum(between[: found.last])


def _chunks(
    run: ClientRun,
    request_id: str,
    start: float | None,
    ttft: float | None,
    between: list[float] | None,
    tokens: int,
    framing: Framing,
) -> None:
    if ttft is None or between is None or run.chunks is None:
        return
    found = framing.content(len(between), tokens)
    for ordinal, after in enumerate((ttft + np.concatenate([[0.0], np.cumsum(between)])).tolist()):
        content = found.first is not None and found.last is not None and found.first <= ordinal <= found.last
        run.chunks.append(
            {
                "request_id": request_id,
                "ordinal": ordinal,
                "time_ns": None if start is None else ns(start + after),
                "after_ns": ns(after) if start is None else None,
                "tokens": (1 if found.chunks == tokens else None) if content else 0,
                "visible": content,
            }
        )


def _placed(
    start: float | None, first: float | None, last: float | None, end: float | None
) -> tuple[dict[str, int | None], list[str]]:
    if start is None:
        return durations(ns(first), ns(last), ns(end))
    moved = [None if value is None else ns(start + value) for value in (first, last, end)]
    return times(ns(start), *moved)


def _own_terms(
    rows: Totals,
    input_tokens: int | None,
    tokens: int | None,
    ttft: float | None,
    between: list[float] | None,
    latency: float | None,
    start: float | None,
) -> None:
    rows.ok += 1
    rows.input_tokens += input_tokens or 0
    rows.output_tokens += tokens or 0
    if ttft is not None:
        rows.ttft.append(ttft * 1e3)
    rows.itl += [gap * 1e3 for gap in between or ()]
    if latency is not None:
        rows.e2el.append(latency * 1e3)
        if tokens and tokens > 1 and ttft is not None:
            rows.tpot.append((latency - ttft) / (tokens - 1) * 1e3)
        if start is not None:
            rows.spans.append((start, start + latency))
