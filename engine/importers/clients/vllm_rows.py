"""The arrays of vLLM's details as rows of ``requests`` and ``chunks``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.importers.clients import flags
from engine.importers.clients.bench_rows import Kinds, Totals, failure, gaps, requests_in, seconds
from engine.importers.clients.framing import Framing, framing_of
from engine.importers.clients.run import ClientRun
from engine.importers.clients.times import durations, times
from engine.importers.clients.values import count, ns
from engine.importers.clients.within import window_start
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
NO_OUTCOME = "no answer, and no errors are kept"
"""Our word for the outcome of a request of which a result says no more than zeros."""
_KINDS: Kinds = {"ttfts": float, "latencies": float, "start_times": float, "errors": str}


@dataclass
class VllmTotals(Totals):
    """Beside what the rows add up to: latencies that need the end of a response."""

    tpot: list[float] = field(default_factory=list)
    e2el: list[float] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    """Requests that got no answer where the result does not say which of them failed."""


def framing_in(chat: bool, held: Mapping[str, list[Any]]) -> Framing:
    """What stands around the content; without gaps nothing does that could be taken off."""
    if "itls" not in held:
        return Framing(False, None)
    pairs = zip(held.get("output_lens", []), held["itls"], strict=False)
    counted = ((count(length), gaps(values)) for length, values in pairs)
    return framing_of(chat, [(tokens, len(list_)) for tokens, list_ in counted if tokens and list_ is not None])


def read_rows(
    held: Mapping[str, list[Any]],
    framing: Framing,
    length_s: float | None,
    failures: bool,
    run: ClientRun,
    rows: VllmTotals,
    where: str,
    options: Options,
) -> None:
    """Fill the run's tables and ``rows`` from the arrays; times are seconds on a clock of the process.

    ``failures`` is whether requests failed; without the array of errors those look like answers of nothing. Time 0 is
    the first start, of those that lie within the stated ``length_s``: a wild one does not move the others.
    """
    starts = [found for value in held.get("start_times", ()) if (found := seconds(value)) is not None]
    run.origin_ns = ns(window_start(np.asarray(starts, np.float64), length_s)) or 0
    for request_id, given in requests_in(held, ARRAYS, _KINDS, rows.unusable, run.bad, where, options):
        if failures and "errors" not in held and _unanswered(given):
            _silent(request_id, given, run, rows)
        else:
            _request(request_id, given, framing, run, rows, timed="start_times" in held)


def _unanswered(given: Mapping[str, Any]) -> bool:
    """Whether not even a first chunk came: the zeros that a failed request is written with."""
    nothing = not given["output_lens"] and not given["itls"]
    return nothing and number(given["ttfts"]) == 0 and given["latencies"] in (None, 0)


def _silent(request_id: str, given: Mapping[str, Any], run: ClientRun, rows: VllmTotals) -> None:
    """A request without an outcome. A time of dispatch without an end would leave it in flight to the last moment."""
    assert run.requests is not None
    rows.silent.append(request_id)
    rows.spans.take(request_id, seconds(given["start_times"]), None)
    row = {"request_id": request_id, "phase": "profile", "input_tokens": count(given["input_lens"])}
    run.requests.append({**row, "status": "in_flight", "tool_status": NO_OUTCOME, "flags": flags.NO_OUTCOME})


def _request(
    request_id: str, given: Mapping[str, Any], framing: Framing, run: ClientRun, rows: VllmTotals, timed: bool
) -> None:
    assert run.requests is not None
    start, ttft, latency = (seconds(given[name]) for name in ("start_times", "ttfts", "latencies"))
    row: dict[str, Any] = {
        "request_id": request_id,
        "phase": "profile",
        "input_tokens": count(given["input_lens"]),
    }
    waited = number(given["queue_times"])
    begun = start if timed else 0.0
    if start is not None:
        row["dispatched_ns"] = ns(start)
        row["scheduled_ns"] = ns(start - waited) if waited is not None and waited >= 0 else None
    if given["errors"]:
        rows.failed += 1
        rows.spans.take(request_id, start, None)
        run.requests.append({**row, **failure(given["errors"])})
        return
    between, tokens = gaps(given["itls"]), count(given["output_lens"])
    if latency is None and ttft is not None and between is not None:
        latency = ttft + sum(between)
    _own_terms(rows, row["input_tokens"], tokens, ttft, between, latency)
    rows.spans.take(request_id, begun, None if begun is None or ns(latency) is None else begun + (latency or 0.0))
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
    if ttft is None or ttft < 0 or between is None or run.chunks is None:
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
    rows: VllmTotals,
    input_tokens: int | None,
    tokens: int | None,
    ttft: float | None,
    between: list[float] | None,
    latency: float | None,
) -> None:
    rows.succeeded(input_tokens, tokens, ttft, between)
    if latency is not None:
        rows.e2el.append(latency * 1e3)
        if tokens and tokens > 1 and ttft is not None:
            rows.tpot.append((latency - ttft) / (tokens - 1) * 1e3)
