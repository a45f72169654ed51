"""What result files of vLLM's and SGLang's load generators share: a header with flat statistics, parallel arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.bundle import Check
from engine.errors import GapscopeError
from engine.importers.clients.reproduce import Figure, compare, reported_rows, reproduced
from engine.intake.rows import number

Floats = npt.NDArray[np.float64]

SOURCES = {"ttft": "ttft", "tpot": "tpot", "itl": "chunk_gap", "e2el": "e2e", "e2e_latency": "e2e"}
"""Our metric beside each of theirs; their ITL is the gap between chunks."""
RATES = {"request_throughput": "request_rate", "output_throughput": "output_rate"}
TOTALS = {"total_token_throughput": "total_rate", "total_throughput": "total_rate"}
RATE = "count or tokens of the successes / duration of the whole benchmark call"
_STATISTIC = re.compile(r"(mean|median|std|p\d+(?:\.\d+)?)_([a-z0-9_]+)_ms")
_COUNTS = re.compile(
    r"(total_|max_|num_|completed|failed|duration|concurrency|accept|spec_decode|rtfx|input_throughput)"
)


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


def arrays(document: Mapping[str, Any], names: tuple[str, ...], where: str) -> dict[str, list[Any]]:
    """The arrays of these names that a document has; they must be of one length.

    Raises:
        GapscopeError: one is no list, or their lengths differ.
    """
    found = {name: document[name] for name in names if document.get(name) is not None}
    for name, values in found.items():
        if not isinstance(values, list):
            raise GapscopeError(f"{where}: {name} is no list, expected one value per request. Save the result again.")
    lengths = {name: len(values) for name, values in found.items() if values}
    if len(set(lengths.values())) > 1:
        words = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise GapscopeError(f"{where}: the arrays have different lengths ({words}), expected one value per request.")
    return {name: values for name, values in found.items() if values}


def gaps(values: Any) -> list[float] | None:
    """Gaps between chunks in seconds; None where they are no list of finite numbers of 0 or more."""
    if not isinstance(values, list):
        return None
    found = [number(value) for value in values]
    return None if any(gap is None or gap < 0 for gap in found) else [gap for gap in found if gap is not None]


def are_gaps(values: Any) -> bool:
    """Whether these are gaps as a tool writes them: numbers, ``NaN`` among them, or nothing at all."""
    return values is None or (isinstance(values, list) and all(type(value) in (int, float) for value in values))


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


def asked_and_seen(document: Mapping[str, Any], asked: Any, ok: int, failed: int, rows: int | None) -> Check:
    """Whether completed and failed requests, and the rows, are as many as were asked for."""
    wanted, done = number(asked), number(document.get("completed"))
    lost = number(document.get("failed"))
    found = f"{'no' if rows is None else rows} rows, {ok} without an error and {failed} with one"
    told = f"the header says {_count(wanted)} asked for, {_count(done)} completed, {_count(lost)} failed"
    if done is None or rows is None:
        return Check("rows_counted", "unknown", f"{told}; {found}")
    good = done == ok and lost in (None, failed) and wanted in (None, rows)
    return Check("rows_counted", "pass" if good else "fail", f"{told}; {found}")


def _count(value: float | None) -> str:
    return "an unknown number" if value is None else f"{value:g}"


def peak(starts: Floats, ends: Floats) -> int:
    """Most intervals that are open at one moment; one that ends as another starts is not open any more."""
    times = np.concatenate([starts, ends])
    steps = np.concatenate([np.ones(len(starts)), -np.ones(len(ends))])
    order = np.lexsort((steps, times))
    return int(np.cumsum(steps[order]).max(initial=0))


def peak_check(reported: Any, cap: Any, found: int | None) -> Check:
    """The peak concurrency of the rows against the cap, with the tool's own figure, which counts whole seconds."""
    told, limit = number(reported), number(cap)
    says = "" if told is None else f"; the tool reports {told:g}, which counts whole seconds"
    if found is None or limit is None:
        why = "no start times are kept" if found is None else f"at most {found} in flight, no cap is stated"
        return Check("concurrency_capped", "unknown", f"{why}{says}")
    verdict = "pass" if found <= limit else "fail"
    return Check("concurrency_capped", verdict, f"at most {found} in flight where {limit:g} are allowed{says}")
