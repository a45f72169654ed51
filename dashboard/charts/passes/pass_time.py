"""Passes over time: what each batch was made of on both sides, and how evenly ranks share the work."""

from __future__ import annotations

from typing import Any

import numpy as np

from dashboard.charts import figures, style
from dashboard.charts.answer import Answer, Column, stack
from dashboard.charts.figures import Axis, Figure, Series
from dashboard.charts.passes.passes import PASS_COLUMNS, counts
from dashboard.charts.phases import TIME, shaded
from dashboard.frame import Frame
from dashboard.queries import passes
from dashboard.queries.ranges import Span, capture_span
from dashboard.store import Result, Store

SINGLE = 500
"""Up to so many passes of a side are drawn one by one, more as means of even bins of time."""
BINS = 200

SINGLE_COLUMNS = {
    "start": "start_ns",
    "decode": "num_decode_requests",
    "new": "sum_prefill_tokens",
    "duration": "duration_ns",
    "waiting": "num_waiting",
}
BIN_COLUMNS = {
    "start": "time_ns",
    "decode": "decode_requests",
    "new": "new_tokens",
    "duration": "longest_ns",
    "waiting": "waiting",
}
"""The columns of single passes and of bins."""


def timeline(frame: Frame, store: Store, start_s: float, length_s: float, rank: str = "") -> tuple[Answer, Figure, str]:
    """New tokens of each pass, a panel per side on one axis of time, with decodes, durations, queues; how it is made.

    ``rank`` is one of :func:`ranks`: of a run with several, only its passes; any other text is all. Passes of several
    ranks run at the same time, so they are drawn as means of bins.
    """
    span = Span(int(start_s * 1e9), int((start_s + length_s) * 1e9))
    known = {side.run_id: passes.ranks(store, side.run_id) for side in frame.sides}
    only = {run_id: rank if rank in named and len(named) > 1 else None for run_id, named in known.items()}
    mingled = any(len(named) > 1 and only[run_id] is None for run_id, named in known.items())
    single = [(s, passes.between(store, s.run_id, span, SINGLE, only[s.run_id])) for s in frame.sides]
    one_by_one = not mingled and not any(result.truncated for _, result in single)
    results = single
    if not one_by_one:
        results = [(s, passes.timeline(store, s.run_id, span, BINS, only[s.run_id])) for s in frame.sides]
    shown = [(side, result) for side, result in results if not result.not_recorded and len(result)]
    names = SINGLE_COLUMNS if one_by_one else BIN_COLUMNS
    width = None if one_by_one else length_s / BINS
    panels = [
        (f"{side.role.name}: new tokens per pass", _prompts(result, names, width, frame.dark)) for side, result in shown
    ]
    for key, title in (  # their tokens, one each, would not be seen beside hundreds of new ones
        ("decode", "decode requests per pass"),
        ("duration", "pass duration, ms"),
        ("waiting", "waiting, per rank" if mingled else "waiting"),
    ):
        series = [
            Series(side.role, side.name, _start(result, names), _values(result, names[key])) for side, result in shown
        ]
        if key == "duration" and not one_by_one:
            title = "longest pass, ms"
        if series:
            panels.append((title, figures.lines(series, Axis(""), Axis(""), dark=frame.dark, step=True)))
    figure: Figure = {"data": [], "layout": {}}
    if shown:
        figure = figures.small_multiples(panels, columns=1, height=120)
        figure = figures.one_axis(figure, TIME, (start_s, start_s + length_s))
        figure = shaded(frame, figure, every=True)
    n = {side.run_id: None if r.not_recorded else _count(r, one_by_one) for side, r in results}
    if one_by_one:
        words = "Each pass is a bar as wide as it lasts."
    elif mingled:
        words = f"Means over the passes of all ranks, in {BINS} even bins of time. Choose a rank for its own passes."
    else:
        words = f"More than {SINGLE} passes: means of {BINS} even bins of time. A shorter window shows single passes."
    return stack(results, PASS_COLUMNS[:-2] if one_by_one else (), n), figure, words


def _values(result: Result, column: str) -> np.ndarray:
    values = result.array(column).astype(np.float64)
    return values / 1e6 if column.endswith("_ns") else values


def _start(result: Result, names: dict[str, str]) -> np.ndarray:
    return result.array(names["start"]) / 1e9


def _count(result: Result, one_by_one: bool) -> int:
    return len(result) if one_by_one else int(np.nansum(result.array("passes")))


def _prompts(result: Result, names: dict[str, str], width: float | None, dark: bool) -> Figure:
    """The new tokens of prefills; bars begin where the pass does."""
    start = _start(result, names)
    wide = result.array("duration_ns").astype(np.float64) / 1e9 if width is None else np.full(len(start), width)
    trace: dict[str, Any] = {
        "type": "bar",
        "name": "new tokens",
        "x": (start + wide / 2).astype(np.float32),
        "y": np.nan_to_num(_values(result, names["new"])).astype(np.float32),
        "width": wide.astype(np.float32),
        "hovertemplate": "%{y:.4~g} new tokens at %{x:.3f} s<extra></extra>",
        "marker": {"color": style.pick(style.CLASSES["prefill_only"], dark), "line": {"width": 0}},
    }
    return figures.compose([trace], Axis(""), Axis(""), dark=dark)


def ranks(frame: Frame, store: Store) -> list[str]:
    """The workers and ranks of the sides that have more than one."""
    known = [passes.ranks(store, side.run_id) for side in frame.sides]
    return list(dict.fromkeys(rank for named in known if len(named) > 1 for rank in named))


def balance(frame: Frame, store: Store) -> Answer:
    """Work and time by rank, and who is the slowest how often."""
    results = [(side, passes.rank_balance(store, side.run_id, frame.population_of(side))) for side in frame.sides]
    columns = [
        Column("worker_id", "Worker"),
        Column("dp_rank", "Rank", "%d"),
        Column("passes", "Passes", "%d"),
        Column("time_ms", "Time (ms)", "%.0f"),
        Column("new_tokens", "New tokens", "%d"),
        Column("decode_tokens", "Decode tokens", "%d"),
        Column("max_blocks_used", "KV blocks used at most", "%d"),
        Column("steps", "Steps with others", "%d"),
        Column("slowest_steps", "Slowest in", "%d"),
        Column("slowest_share", "Share of steps", "percent"),
        Column("waited_ms", "Waited for the slowest (ms)", "%.0f"),
    ]
    words = "Ranks of one step end together: its duration is that of the slowest. Ties count for each of them."
    return stack(results, columns, counts(frame, store), words)


def spread(frame: Frame, store: Store) -> tuple[Answer, Figure, str]:
    """How far the ranks of a step lie apart over time, and what waiting for the slowest costs, in words."""
    span = capture_span(store, *(side.run_id for side in frame.sides))
    results = [
        (side, passes.rank_steps(store, side.run_id, frame.population_of(side), span, BINS)) for side in frame.sides
    ]
    shown = [(side, result) for side, result in results if not result.not_recorded and len(result)]
    panels, words = [], []
    for column, title in (("longest_ns", "slowest rank, ms"), ("spread_ns", "slowest - fastest rank, ms")):
        series = [
            Series(side.role, side.name, result.array("time_ns") / 1e9, _values(result, column))
            for side, result in shown
        ]
        panels.append((title, figures.lines(series, Axis(TIME), Axis(title), dark=frame.dark, step=True)))
    for side, result in shown:
        steps = result.array("steps").astype(np.float64)
        longest = float((result.array("longest_ns") * steps).sum())
        above = float((result.array("above_mean_ns") * steps).sum())
        mean = style.fixed(longest / steps.sum() / 1e6, 2)
        words.append(
            f"{side.role.name.capitalize()}: {int(steps.sum()):,} steps of several ranks; the slowest takes {mean} ms, "
            f"{style.percent(above / longest)} of it above the mean rank."
        )
    columns = [
        Column("time_s", "From (s)", "%.2f"),
        Column("steps", "Steps", "%d"),
        Column("longest_ms", "Slowest rank, mean (ms)", "%.2f"),
        Column("spread_ms", "Slowest - fastest, mean (ms)", "%.2f"),
        Column("widest_ms", "Slowest - fastest, at most (ms)", "%.2f"),
        Column("mostly_slowest", "Mostly the slowest"),
    ]
    n = {side.run_id: None if r.not_recorded else int(np.nansum(r.array("steps"))) for side, r in results}
    figure = figures.small_multiples(panels, columns=2, height=220) if shown else {"data": [], "layout": {}}
    return stack(results, columns, n, "n: steps that several ranks take together"), figure, " ".join(words)
