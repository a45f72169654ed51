"""The headers of vLLM's and SGLang's load generators: flat statistics, the run that a document holds, its checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.bundle import Check, Phase
from engine.importers.clients.appended import Document
from engine.importers.clients.reproduce import Figure, compare, reported_rows, reproduced
from engine.importers.clients.values import ns
from engine.importers.contract import NO_ROWS, Options, Part, Use
from engine.intake.rows import number

Floats = npt.NDArray[np.float64]

SOURCES = {"ttft": "ttft", "tpot": "tpot", "itl": "chunk_gap", "e2el": "e2e", "e2e_latency": "e2e"}
"""Our metric beside each of theirs; their ITL is the gap between chunks."""
RATES = {"request_throughput": "request_rate", "output_throughput": "output_rate"}
TOTALS = {"total_token_throughput": "total_rate", "total_throughput": "total_rate"}
RATE = "count or tokens of the successes / duration of the whole benchmark call"
DETAILS = (b'"ttfts": [', b'"ttfts":[')
"""What a document with the details of each request holds."""
_STATISTIC = re.compile(r"(mean|median|std|p\d+(?:\.\d+)?)_([a-z0-9_]+)_ms")
_COUNTS = re.compile(
    r"(total_|max_|num_|completed|failed|duration|concurrency|accept|spec_decode|rtfx|input_throughput)"
)


def part_of(
    document: Document,
    form: str,
    tool: str,
    run: Callable[[Path, Options], str],
    ignores: tuple[tuple[str, str], ...] = (),
) -> Part:
    """The run that a document holds: with the details of each request, or a summary alone."""
    detailed = bool(document.marks)
    what = "header and a value per request" if detailed else "header with statistics; no details were saved"
    return Part(
        format=form,
        tool=tool,
        version=None,
        name=document.name,
        kind="measured" if detailed else "imported_summary",
        uses=(Use(document.file, what + document.among),),
        run=run,
        ignores=ignores,
        notes=() if detailed else (NO_ROWS,),
    )


def phases_of(document: Mapping[str, Any]) -> list[Phase]:
    """The whole benchmark call as profile; none where its duration is not said."""
    length = number(document.get("duration"))
    return [Phase("profile", 0, ns(length) or 0)] if length and length > 0 else []


def client_facts(document: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """What a header says of the client, for the identity."""
    cap, rate = number(document.get("max_concurrency")), document.get("request_rate")
    most = f", {cap:g} at most" if cap else ""
    return [
        ("client", "lanes", None if cap is None else int(cap)),
        ("client", "loop", f"requests {_pace(rate)}{most}" if rate else None),
        ("client", "streaming", True),
    ]


def _pace(rate: Any) -> str:
    """A rate in words; tools write infinity, as a number or as text, where nothing is waited for."""
    return "as fast as possible" if str(rate).lower() in ("inf", "infinity") else f"at {rate} a second"


def statistics(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """{latency: {statistic: milliseconds}} of the flat keys of a header."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in document.items():
        match = _STATISTIC.fullmatch(key)
        if match:
            found.setdefault(match[2], {})[match[1]] = value
    return found


def header_rows(
    document: Mapping[str, Any], latencies: Mapping[str, str], source: str, counts: Mapping[str, int | None]
) -> Iterator[dict[str, Any]]:
    """Rows of ``reported`` of a header; ``latencies`` says how the tool defines each of its latencies.

    ``counts`` is over how many values each of them was taken, where that is known.
    """
    for name, block in statistics(document).items():
        words = {word: value for word, value in block.items() if not (word == "p50" and "median" in block)}
        metric, definition = SOURCES.get(name), latencies.get(name)
        yield from reported_rows(
            "run", name, words, source, unit="ms", metric=metric, definition=definition, n=counts.get(name)
        )
    for key, value in document.items():
        if _STATISTIC.fullmatch(key) or isinstance(value, list | dict | bool):
            continue
        name = key.rstrip(":")  # older files spell request_goodput with the colon inside
        metric = {**RATES, **TOTALS}.get(name)
        if metric:
            yield from reported_rows("run", name, {"value": value}, source, unit="1/s", metric=metric, definition=RATE)
        elif _COUNTS.match(name) or name.startswith("request_goodput"):
            yield from reported_rows("run", name, {"value": value}, source)


def summary_check(
    document: Mapping[str, Any], rows: Mapping[str, Floats], totals: Mapping[str, float], source: str, aside: str = ""
) -> Check:
    """The header computed again: latencies in milliseconds, and ``totals`` (counts, tokens) over its duration."""
    figures = list(compare(rows, {name: statistics(document).get(name, {}) for name in rows}))
    duration = number(document.get("duration"))
    for key, total in totals.items():
        told = number(document.get(key))
        if told is None:
            continue
        if key in RATES or key in TOTALS:
            if duration:
                figures.append(Figure(key, "value", told, total / duration))
        else:
            figures.append(Figure(key, "value", told, total))
    return reproduced(figures, source, aside)


def asked_and_seen(
    document: Mapping[str, Any], asked: Any, ok: int, failed: int, rows: int | None, silent: int = 0
) -> Check:
    """Whether completed and failed requests, and the rows, are as many as were asked for.

    ``silent`` of the rows do not say which of both they are.
    """
    wanted, done = number(asked), number(document.get("completed"))
    lost = number(document.get("failed"))
    found = f"{'no' if rows is None else rows} rows, {ok} without an error and {failed} with one"
    found += f", {silent} without an outcome" if silent else ""
    told = f"the header says {_count(wanted)} asked for, {_count(done)} completed, {_count(lost)} failed"
    if done is None or rows is None:
        return Check("rows_counted", "unknown", f"{told}; {found}")
    good = ok <= done <= ok + silent and lost in (None, rows - done) and wanted in (None, rows)
    return Check("rows_counted", "pass" if good else "fail", f"{told}; {found}")


def _count(value: float | None) -> str:
    return "an unknown number" if value is None else f"{value:g}"


def peak(starts: Floats, ends: Floats) -> int:
    """Most intervals that are open at one moment; one that ends as another starts is not open any more."""
    times = np.concatenate([starts, ends])
    steps = np.concatenate([np.ones(len(starts)), -np.ones(len(ends))])
    order = np.lexsort((steps, times))
    return int(np.cumsum(steps[order]).max(initial=0))


def peak_check(reported: Any, cap: Any, found: int | None, why: str = "no start times are kept") -> Check:
    """The peak concurrency of the rows against the cap, with the tool's own figure, which counts whole seconds.

    ``why`` there is no peak, where there is none.
    """
    told, limit = number(reported), number(cap)
    says = "" if told is None else f"; the tool reports {told:g}, which counts whole seconds"
    if found is None or limit is None:
        why = why if found is None else f"at most {found} in flight, no cap is stated"
        return Check("concurrency_capped", "unknown", f"{why}{says}")
    verdict = "pass" if found <= limit else "fail"
    return Check("concurrency_capped", verdict, f"at most {found} in flight where {limit:g} are allowed{says}")
