"""One source-turn over time: what it waited for and what it got, the batches it was in, and its tokens arriving."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dashboard.charts import figures, style
from dashboard.charts.answer import Answer, Column, stack
from dashboard.charts.figures import Axis, Figure, Series
from dashboard.charts.requests.request import Chosen
from dashboard.frame import Frame, Side
from dashboard.queries import request
from dashboard.queries.request import Request
from dashboard.store import Result, Store

Row = Mapping[str, Any]

KINDS: dict[str, tuple[str, str, str]] = {
    "way": ("on its way to the engine", "#C9C9CF", "#55555C"),
    "waiting": ("waiting for admission", "#EDA66F", "#D08A4A"),
    "prefill": ("prefill", *style.CLASSES["prefill_only"]),
    "again": ("computed again", "#B34700", "#F0A640"),
    "transfer": ("KV on its way between pools", "#C0504D", "#E08A87"),
    "decode": ("decode", *style.CLASSES["decode_only"]),
    "beside": ("decode beside a prefill", *style.CLASSES["mixed"]),
    "unscheduled": ("running, not in the batch", "#E8D8A8", "#5C5230"),
    "preempted": ("preempted", "#8A2F00", "#F2B04A"),
    "output": ("output on its way", "#DADADF", "#45454B"),
}
"""Kinds of stretches: words, colour in the light and in the dark theme."""
MARKS: tuple[tuple[str, str, str], ...] = (
    ("dispatched_ns", "dispatched", "line-ns-open"),
    ("first_visible_ns", "first visible", "triangle-up"),
    ("last_visible_ns", "last visible", "square"),
    ("end_ns", "closed", "x-thin-open"),
)
DECODES = ("decode", "beside")
MOST_BARS = 250
MOST_POINTS = 500
BATCH = (
    ("num_decode_requests", "decode requests in the batch"),
    ("sum_prefill_tokens", "new tokens in the batch"),
    ("num_waiting", "waiting requests"),
)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A piece of a request's life: a key of KINDS, when, and for passes how many with how many own tokens."""

    kind: str
    start_ns: int
    end_ns: int
    passes: int = 0
    tokens: int = 0
    note: str = ""


def stretches(row: Row, passes: Sequence[Row]) -> list[Stretch]:
    """The life of a request, in order: its way, its wait, each pass that it was in, and what lay between them.

    Between two of its passes on different workers lies the transfer of its KV. Two with others of their worker between
    them part it from the batch: it was preempted if it then computes again what it had computed, else it had no place
    in the budget. ``passes`` are rows of ``queries.request.passes_of``.
    """
    found = []
    received, admitted = row["received_ns"], row["first_admit_ns"]
    own = [each for each in passes if each["own_tokens"] is not None]
    began = own[0]["start_ns"] if own else admitted
    if received is not None:
        found.append(Stretch("way", received if row["dispatched_ns"] is None else row["dispatched_ns"], received))
    if began is not None and (received is not None or row["dispatched_ns"] is not None):
        found.append(Stretch("waiting", row["dispatched_ns"] if received is None else received, began))
    elif received is not None and row["end_ns"] is not None:
        found.append(Stretch("waiting", received, row["end_ns"]))
    reached, last, others, rank = 0, None, 0, None
    for each in passes:
        if each["own_tokens"] is None:
            others += (each["worker_id"], each["dp_rank"]) == rank
            continue
        before = each["computed_before"]
        if last is not None and rank != (each["worker_id"], each["dp_rank"]):
            found.append(Stretch("transfer", last, each["start_ns"]))
        elif last is not None and others:
            found.append(Stretch("preempted" if before < reached else "unscheduled", last, each["start_ns"]))
        kind = "again" if before < reached else "prefill" if before < (row["input_tokens"] or 0) else "decode"
        if kind == "decode" and each["sum_prefill_tokens"]:
            kind = "beside"
        found.append(Stretch(kind, each["start_ns"], each["end_ns"], 1, each["own_tokens"], _batch(each)))
        reached, last, others = max(reached, before + each["own_tokens"]), each["end_ns"], 0
        rank = (each["worker_id"], each["dp_rank"])
    if last is not None and row["last_visible_ns"] is not None and row["last_visible_ns"] > last:
        found.append(Stretch("output", last, row["last_visible_ns"]))
    return found


def _batch(row: Row) -> str:
    return (
        f"pass {row['pass_index']:,}: {row['num_decode_requests']} decode requests, "
        f"{row['sum_prefill_tokens'] or 0:,} new tokens"
    )


def merged(found: Sequence[Stretch], most: int = MOST_BARS) -> list[Stretch]:
    """The same with neighbouring decode passes of one kind joined, where there are more than a screen can show."""
    size = -(-sum(one.kind in DECODES for one in found) // most)
    result: list[Stretch] = []
    run = 0
    for one in found:
        before = result[-1] if result else None
        if size > 1 and before is not None and before.kind == one.kind and one.kind in DECODES and run < size:
            passes, tokens = before.passes + 1, before.tokens + one.tokens
            result[-1] = replace(before, end_ns=one.end_ns, passes=passes, tokens=tokens)
            run += 1
        else:
            result.append(one)
            run = 1
    return result


def timeline(frame: Frame, store: Store, chosen: Chosen) -> tuple[Answer, Figure]:
    """Every side as a row over the time since its dispatch, with the batches it was in below."""
    results = [(side, one, request.passes_of(store, side.run_id, one)) for side, one in chosen.sides]
    traces = [*_bars(results, frame.dark), *_marks(chosen, frame.dark)]
    names = tuple(side.role.name for side, _ in chosen.sides)
    axis = Axis("", categories=names, reverse=True)
    panels = [("what it did", figures.compose(traces, Axis(""), axis, dark=frame.dark))]
    for column, title in BATCH:
        series = [
            Series(side.role, side.role.name, *_points(one, result, column))
            for side, one, result in results
            if len(result)
        ]
        if series:
            panels.append((title, figures.lines(series, Axis(""), Axis(""), dark=frame.dark, step=True)))
    figure = figures.small_multiples(panels, columns=1, height=70 + 30 * len(names))
    figure["layout"]["barmode"] = "overlay"
    figure = figures.one_axis(figure, "ms from dispatch")
    return _pass_rows(results), figure


def _bars(results: Iterable[tuple[Side, Request, Result]], dark: bool) -> list[dict[str, Any]]:
    lives = [(side, one, merged(stretches(one.row, _rows(result)))) for side, one, result in results]
    traces = []
    for kind, (words, *colours) in KINDS.items():
        mine = [(side, one, piece) for side, one, found in lives for piece in found if piece.kind == kind]
        if mine:
            starts = [(piece.start_ns - one.origin_ns) / 1e6 for _, one, piece in mine]
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": words,
                    "y": [side.role.name for side, _, _ in mine],
                    "base": np.array(starts, dtype=np.float32),
                    "x": np.array([(p.end_ns - p.start_ns) / 1e6 for _, _, p in mine], dtype=np.float32),
                    "width": 0.62,
                    "text": [_hover(piece) for _, _, piece in mine],
                    "textposition": "none",
                    "hovertemplate": f"{words}: %{{base:.1f}} ms, %{{x:.1f}} ms long<br>%{{text}}<extra>%{{y}}</extra>",
                    "marker": {"color": style.pick((colours[0], colours[1]), dark), "line": {"width": 0}},
                }
            )
    return traces


def _hover(piece: Stretch) -> str:
    if not piece.passes:
        return ""
    many = "" if piece.passes == 1 else f" in {piece.passes} passes, from "
    return f"{piece.tokens:,} own tokens{many or ', '}{piece.note}"


def _marks(chosen: Chosen, dark: bool) -> list[dict[str, Any]]:
    """Moments that the client saw."""
    traces = []
    for name, words, symbol in MARKS:
        seen = [(side, at) for side, one in chosen.sides if (at := one.since_dispatch_ms(name)) is not None]
        if seen:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": words,
                    "x": np.array([at for _, at in seen], dtype=np.float32),
                    "y": [side.role.name for side, _ in seen],
                    "hovertemplate": f"{words}: %{{x:.1f}} ms<extra>%{{y}}</extra>",
                    "marker": {
                        "symbol": symbol,
                        "size": 10,
                        "color": "#F2F0EC" if dark else "#202024",
                        "line": {"width": 1.5, "color": "#F2F0EC" if dark else "#202024"},
                    },
                }
            )
    return traces


def _rows(result: Result) -> list[dict[str, Any]]:
    return [] if result.not_recorded else result.rows()


def _points(one: Request, result: Result, column: str) -> tuple[np.ndarray, np.ndarray]:
    """A column of the passes over the time since dispatch; means of neighbours where there are too many."""
    x = (result.array("start_ns") - one.origin_ns) / 1e6
    y = result.array(column).astype(np.float64)
    size = -(-len(x) // MOST_POINTS)
    if size > 1:
        starts = np.arange(0, len(x), size)
        x, y = x[starts], np.add.reduceat(y, starts) / np.diff(np.append(starts, len(y)))
    return x, y


def _pass_rows(results: Sequence[tuple[Side, Request, Result]]) -> Answer:
    columns = [
        Column("pass_index", "Pass", "%d"),
        Column("start_s", "Start (s)", "%.4f"),
        Column("duration_ms", "Duration (ms)", "%.2f"),
        Column("own_tokens", "Own tokens", "%d"),
        Column("computed_before", "Computed before (tokens)", "%d"),
        Column("num_decode_requests", "Decode requests", "%d"),
        Column("sum_prefill_tokens", "New tokens", "%d"),
        Column("sum_decode_kv_tokens", "Decode KV (tokens)", "%d"),
        Column("num_running", "Running", "%d"),
        Column("num_waiting", "Waiting", "%d"),
    ]
    found = stack([(side, result) for side, _, result in results], columns, _own(results))
    words = "Passes of its rank from its dispatch to its last one; where it was not in a pass its own tokens are empty."
    return replace(found, not_recorded=None, definition=words + " n: passes that it was in.", empty=SILENT)


SILENT = "No pass of this request is recorded."


def _own(results: Sequence[tuple[Side, Request, Result]]) -> dict[str, int | None]:
    return {
        side.run_id: None if result.not_recorded else sum(row["own_tokens"] is not None for row in result.rows())
        for side, _, result in results
    }


def silences(store: Store, chosen: Chosen) -> list[str]:
    """What the charts of a side cannot show, in sentences."""
    said = []
    for side, one in chosen.sides:
        result = request.passes_of(store, side.run_id, one)
        rows, name = _rows(result), f"{side.role.name.capitalize()} {side.run_id}"
        if not one.timed:
            said.append(f"{name}: the tool keeps no times of this request, so it has no place in time or in a pass.")
        elif result.not_recorded:
            said.append(result.not_recorded)
        elif rows and not any(row["composed"] for row in rows):
            said.append(f"{name}: who was in which pass was not recorded, so only what the client saw is shown.")
        elif not any(row["own_tokens"] is not None for row in rows):
            said.append(f"{name}: the request was in no pass.")
        if result.truncated:
            said.append(f"{name}: only its first {len(result):,} passes are shown.")
    return said


def tokens(frame: Frame, store: Store, chosen: Chosen) -> tuple[Answer, Figure]:
    """Output tokens that the client had received, over the time since dispatch."""
    results = [(side, one, request.chunks(store, side.run_id, one)) for side, one in chosen.sides]
    series = []
    for side, _, result in results:
        if not result.not_recorded and len(result):
            x = np.append(0.0, result.array("since_dispatch_ns").astype(np.float64) / 1e6)
            y = np.append(0.0, result.array("tokens_so_far").astype(np.float64))
            if np.isnan(y[1:]).all():
                continue
            keep = np.unique(np.linspace(0, len(x) - 1, min(len(x), MOST_POINTS)).astype(int))
            series.append(Series(side.role, side.name, x[keep], y[keep]))
    columns = [
        Column("ordinal", "Chunk", "%d"),
        Column("time_s", "Received (s)", "%.4f"),
        Column("since_dispatch_ms", "Since dispatch (ms)", "%.2f"),
        Column("tokens", "Tokens", "%d"),
        Column("tokens_so_far", "Tokens so far", "%d"),
        Column("visible", "Visible"),
    ]
    n = {side.run_id: None if result.not_recorded else len(result) for side, _, result in results}
    found = stack([(side, result) for side, _, result in results], columns, n, "n: chunks")
    figure = figures.lines(series, Axis("ms from dispatch"), Axis("output tokens received"), dark=frame.dark, step=True)
    empty = "The client received no chunk of this request."
    if found.rows.num_rows and not series:
        empty = "Not recorded: nobody counted the tokens of the chunks; their times are in the rows."
    return replace(found, empty=empty), figure
