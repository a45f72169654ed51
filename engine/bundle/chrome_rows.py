"""What a Chrome trace shows of a run: the rows of a window, the times of requests, and their stages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from engine.bundle.reader import Bundle
from engine.errors import GapscopeError

MOST = {"passes": 20_000, "requests": 5_000, "kv_events": 20_000}
"""Rows of each table in one trace: where a window holds more, it ends at the first of one more."""
SHOWN_EVENTS = ("evict", "clear", "preempt", "readmit", "restore")
BEGIN = {"passes": "start_ns", "requests": "dispatched_ns", "kv_events": "time_ns"}
Row = Mapping[str, Any]

COLUMNS = {
    "passes": (
        "pass_index", "worker_id", "dp_rank", "phase", "start_ns", "end_ns", "duration_ns", "num_prefill_requests",
        "sum_prefill_tokens", "sum_prefill_kv_tokens", "num_decode_requests", "sum_decode_kv_tokens",
        "num_output_tokens", "kv_blocks_used", "kv_blocks_cached", "kv_blocks_total", "num_running", "num_waiting",
        "num_preempted", "resolution", "members",
    ),
    "requests": (
        "request_id", "conversation_id", "turn_index", "lane", "phase", "status", "dispatched_ns", "received_ns",
        "first_admit_ns", "first_visible_ns", "last_visible_ns", "end_ns", "first_visible_after_ns",
        "last_visible_after_ns", "end_after_ns", "input_tokens", "output_tokens", "cached_tokens", "preemptions",
    ),
    "kv_events": ("event_index", "time_ns", "pass_index", "worker_id", "dp_rank", "kind", "tier", "request_id",
                  "num_blocks", "reason", "age_ns"),
}  # fmt: skip
STAGES = (
    ("way", "received_ns"),
    ("queue", "first_admit_ns"),
    ("prefill", "first_visible_ns"),
    ("decode", "last_visible_ns"),
)
"""A stage, and the boundary that ends it; the first begins at the dispatch."""


def window_of(from_s: float | None, span_s: float | None, chosen: Row | None) -> tuple[int, int]:
    """Begin and end of the window in nanoseconds; around a chosen request where nothing else is said.

    Raises:
        GapscopeError: no seconds, or no length.
    """
    for value, name in ((from_s, "beginning"), (span_s, "length")):
        if value is not None and (not math.isfinite(value) or abs(value) > 1e9):
            raise GapscopeError(f"A {name} of {value} s: expected seconds from profile start.")
    if span_s is not None and span_s <= 0:
        raise GapscopeError(f"A window of {span_s:g} s: expected a length above 0.")
    start = round(from_s * 1e9) if from_s is not None else chosen["dispatched_ns"] if chosen else 0
    if span_s is None and chosen is not None:
        return start, max(timed(chosen, start + 1)["end_ns"], start + 1)
    return start, start + round((10.0 if span_s is None else span_s) * 1e9)


def rows_of(bundle: Bundle, name: str, start: int, end: int) -> tuple[list[dict[str, Any]], int]:
    """Rows of a table that touch the window, in order of their beginning, and where they had to end.

    The beginnings alone are read first, so that a long window costs no more than what is shown of it.
    """
    path, begin = bundle.file(name), BEGIN[name]
    if path is None:
        return [], end
    held = set(pq.read_schema(path).names)
    inside = pc.field(begin) < end
    if name == "kv_events":
        inside &= (pc.field(begin) >= start) & pc.field("kind").isin(SHOWN_EVENTS)
    elif "end_ns" in held:
        inside &= pc.coalesce(pc.field("end_ns"), pa.scalar(2**62)) > start
    begins = pc.array_sort_indices(times := pq.read_table(path, columns=[begin], filters=inside).column(begin))
    stop = times[begins[MOST[name]].as_py()].as_py() if len(times) > MOST[name] else end
    table = pq.read_table(
        path, columns=[one for one in COLUMNS[name] if one in held], filters=inside & (pc.field(begin) < stop)
    )
    found = [dict.fromkeys(COLUMNS[name]) | row for row in table.to_pylist()]
    found.sort(key=lambda row: (row[begin], row[COLUMNS[name][0]]))
    return [row for row in found if name != "requests" or timed(row, end)["end_ns"] > start], stop


def timed(row: Row, until: int) -> dict[str, Any]:
    """A request with its times, also of tools that keep durations; ``open`` where nobody knows its end."""
    at = dict(row)
    for name in ("first_visible", "last_visible", "end"):
        after = row[f"{name}_after_ns"]
        if at[f"{name}_ns"] is None and after is not None:
            at[f"{name}_ns"] = row["dispatched_ns"] + after
    at["open"] = at["end_ns"] is None
    if at["open"]:
        known = [at[name] for _, name in STAGES if at[name] is not None]
        at["end_ns"] = max([*known, until, row["dispatched_ns"]])
    return at


def find_request(bundle: Bundle, name: str) -> dict[str, Any]:
    """The request of that id, or of that source-turn: the first time it was sent, or the ``#n``-th after it."""
    path = bundle.file("requests")
    if path is None:
        raise GapscopeError(f"Run {bundle.run_id} has no requests, so none is {name!r}.")
    table = bundle.table("requests", COLUMNS["requests"])
    assert table is not None
    found = table.filter(pc.field("request_id") == name.removeprefix("=")).to_pylist()
    conversation, _, turn = name.rpartition("/")
    conversation, _, again = conversation.partition("#")
    if not found and turn.isdecimal() and again in ("", *map(str, range(1, 10_000))):
        same = (pc.field("conversation_id") == conversation) & (pc.field("turn_index") == int(turn))
        sent = sorted(table.filter(same).to_pylist(), key=lambda row: (row["dispatched_ns"], row["request_id"]))
        found = sent[int(again or 0) :]
    if not found:
        raise GapscopeError(
            f"Run {bundle.run_id} has no request {name!r}: expected a request id, or conversation/turn as in s0003/2."
        )
    return dict(found[0])


def stages(row: Row) -> Iterator[tuple[str, int, int]]:
    """Stages of a request with begin and end, one after the other. One whose end is unknown goes on in the next.

    Boundaries of client and engine come from two clocks: one that lies before the one ahead of it takes its time.
    """
    at, end, names = row["dispatched_ns"], row["end_ns"], []
    for name, boundary in STAGES:
        names.append(name)
        if row[boundary] is None:
            continue
        until = min(max(row[boundary], at), end)
        yield " and ".join(names), at, until
        at, names = until, []
    if names and end > at:
        yield " and ".join(names), at, end
