"""What a replay's timing model says of the passes that were measured: along an axis, pass by pass, and over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dashboard.charts import figures, style
from dashboard.charts.answer import Answer, Column, stack
from dashboard.charts.figures import Axis, Figure, Series
from dashboard.charts.passes.passes import WORDS, counts
from dashboard.charts.phases import TIME, shaded
from dashboard.frame import Frame, Side
from dashboard.pricing import Priced, by_timing, price, priced, timing_of
from dashboard.queries import passes
from dashboard.queries.ranges import Span, capture_span
from dashboard.store import Result, Store

Floats = npt.NDArray[np.float64]

BINS = 60
FEWEST = 3
"""A bin of fewer passes is not drawn: one odd pass is no level."""
ERROR = "model / measured - 1"


def durations(frame: Frame, store: Store, pass_class: str, axis: str, log: bool) -> tuple[Answer, Figure]:
    """Duration along an axis: measured passes as marks, each replay's timing at their geometry as lines; its errors.

    A run without a timing of its own, like a repeat of the recording, is drawn by the middle of its passes.
    """
    ids = tuple(side.run_id for side in frame.sides)
    limit = max(passes.axis_limit(store, ids, frame.population, pass_class, axis), 1)
    results: list[tuple[Side, Result]] = []
    for side in frame.sides:
        population = frame.population_of(side)
        results.append((side, passes.duration_curve(store, side.run_id, population, pass_class, axis, limit)))
    figure = _curves(frame, store, results, axis, log)
    panels = [("duration, ms", figure)]
    models = shared_timing(frame, store)
    errors = [
        one
        for side in frame.replays
        if side.run_id in models
        for one in _errors(frame, store, side, names(models[side.run_id]), pass_class, axis, limit)
        if len(one.x)
    ]
    if errors and figure["data"]:
        drawn = figures.lines(errors, Axis(passes.AXES[axis]), Axis(ERROR, percent=True), dark=frame.dark)
        for trace in drawn["data"]:
            if not trace["name"].endswith("p50"):
                trace["line"] = trace["line"] | {"width": 1}
        panels.append(("error of the model, pass by pass", drawn))
    if figure["data"]:
        figure = figures.small_multiples(panels, columns=len(panels), height=300)
    columns = [
        Column("x", f"Mean {passes.AXES[axis]}", "%.0f"),
        Column("passes", "Passes", "%d"),
        Column("mean_ms", "Mean (ms)", "%.2f"),
        Column("p10_ms", "p10 (ms)", "%.2f"),
        Column("p50_ms", "p50 (ms)", "%.2f"),
        Column("p90_ms", "p90 (ms)", "%.2f"),
    ]
    return stack(results, columns, counts(frame, store, pass_class)), figure


def shared_timing(frame: Frame, store: Store) -> dict[str, list[Side]]:
    """The first replay of each timing, by its run id, with all that have it: it is drawn once."""
    sides = {side.run_id: side for side in frame.replays}
    return {group[0]: [sides[one] for one in group] for group in by_timing(store, list(sides))}


def names(sides: Sequence[Side]) -> str:
    """What the legend of their model calls replays that share it."""
    return " and ".join(side.role.name for side in sides)


def _curves(frame: Frame, store: Store, results: Sequence[tuple[Side, Result]], axis: str, log: bool) -> Figure:
    shown = [(side, result) for side, result in results if not result.not_recorded and len(result)]
    measured = next((result for side, result in shown if side is frame.measured), None)
    points, curves = [], []
    models = shared_timing(frame, store)
    if measured is not None:
        x, role = measured.array("x"), frame.measured.role
        points.append((role, f"{role.name} p50", x, measured.array("p50_ns") / 1e6, measured.array("passes")))
        for name in ("p10_ns", "p90_ns"):
            points.append((role, f"{role.name} {name[:3]}", x, measured.array(name) / 1e6, np.ones(len(measured))))
    for side, result in shown:
        if side is frame.measured:
            continue
        timing = timing_of(store, side.run_id) if measured is not None else None
        if timing is not None and side.run_id not in models:
            continue
        if timing is not None and measured is not None:
            geometry = {name: measured.array(name) for name in passes.AXES}
            model = price(timing, geometry) / 1e6
            curves.append(Series(side.role, f"{names(models[side.run_id])} model", measured.array("x"), model))
        else:
            curves.append(Series(side.role, f"{side.role.name} p50", result.array("x"), result.array("p50_ns") / 1e6))
    figure = figures.cloud(points, curves, Axis(passes.AXES[axis]), Axis("pass duration, ms", log=log), dark=frame.dark)
    for trace in figure["data"]:
        if trace["name"].endswith(("p10", "p90")):
            trace["marker"] |= {"symbol": "line-ew-open", "size": 8, "opacity": 0.9}
    return figure


def _errors(frame: Frame, store: Store, side: Side, name: str, pass_class: str, axis: str, limit: int) -> list[Series]:
    """p10, p50 and p90 of the errors in the bins of the curve."""
    found = priced(store, frame.measured.run_id, side.run_id)
    if found is None:
        return []
    chosen = (found.classes == pass_class) & np.isin(found.phases, frame.population.pass_phases)
    x, error = found.geometry[axis][chosen], found.error[chosen]
    bins = np.minimum(x * 40 // (limit + 1), 39)
    held = [one for one in np.unique(bins) if np.count_nonzero(bins == one) >= FEWEST]
    middle = np.array([x[bins == one].mean() for one in held])
    return [
        Series(side.role, f"{name} {label}", middle, np.array([np.percentile(error[bins == one], p) for one in held]))
        for p, label in ((50, "error p50"), (10, "error p10"), (90, "error p90"))
    ]


def drift(frame: Frame, store: Store) -> tuple[Answer, Figure, str]:
    """Error of each replay's timing on the measured passes over the whole recording; its level by phase in words.

    A further recording, like a repeat, shows whether the level moves there too: its own passes, by the first replay.
    """
    found, models = _priced_sides(frame, store), shared_timing(frame, store)
    span = capture_span(
        store, frame.measured.run_id, *(side.run_id for side, _ in found if side.bundle.kind == "measured")
    )
    panels, binned = [], []
    for name in passes.CLASS_AXES:
        series = [line for side, held in found if len((line := _level(side, models, held, name, span)).x)]
        for one in series:
            binned += [
                {"side": one.role.name, "class": name, "time_s": float(at), "error": float(error)}
                for at, error in zip(one.x, one.y, strict=True)
            ]
        if series:
            x = Axis(TIME, range=(span.start_ns / 1e9, span.end_ns / 1e9))
            drawn = figures.lines(series, x, Axis(ERROR, percent=True), dark=frame.dark, markers=True)
            for trace in drawn["data"]:
                trace["marker"]["size"] = 4
            drawn["data"].insert(0, _zero(span, frame.dark))
            panels.append((WORDS[name], drawn))
    figure = figures.small_multiples(panels, columns=len(panels), height=260) if panels else {"data": [], "layout": {}}
    shaded(frame, figure)
    rows = [row for side, held in found for row in _by_phase(side, models, held)]
    columns = [
        Column("side", "Side", pinned=True),
        Column("class", "Class"),
        Column("phase", "Phase", help="empty for a bin of time"),
        Column("time_s", "Bin around (s)", "%.2f"),
        Column("passes", "Passes", "%d"),
        Column("measured_ms", "Measured mean (ms)", "%.2f"),
        Column("model_ms", "Model mean (ms)", "%.2f"),
        Column("error", "Error of the total", "percent"),
        Column("p10", "p10 of the errors", "percent"),
        Column("p90", "p90 of the errors", "percent"),
    ]
    answer = Answer(
        pa.table({one.name: [row.get(one.name) for row in (*rows, *binned)] for one in columns})
        if rows
        else pa.table({}),
        found[0][1].sql if found else "",
        columns,
        _priced_passes(frame, found),
        f"{ERROR}, where the model prices the geometry of the measured pass. Lines: total over total in {BINS} even "
        f"bins of time, where a bin holds {FEWEST} passes. Every phase of the recording is shown; n: passes priced. A "
        "further recording is priced by the model of the first replay.",
        empty="No replay of this pair has a timing of its own that could price the measured passes."
        if "passes" in store.tables(frame.measured.run_id)
        else f"Not recorded: run {frame.measured.run_id} has no passes that a replay's timing could price.",
    )
    return answer, figure, " ".join(_shift(side, models, held) for side, held in found)


def _priced_sides(frame: Frame, store: Store) -> list[tuple[Side, Priced]]:
    """The measured passes at the price of each replay; a further recording's own passes at that of the first replay."""
    timed = [side for side in frame.replays if timing_of(store, side.run_id) is not None]
    found, models = [], shared_timing(frame, store)
    for side in frame.replays:
        if side in timed and side.run_id not in models:
            continue
        if side in timed:
            one = priced(store, frame.measured.run_id, side.run_id)
        else:
            one = priced(store, side.run_id, timed[0].run_id) if timed and side.bundle.kind == "measured" else None
        found += [(side, one)] if one is not None else []
    return found


def _priced_passes(frame: Frame, found: Sequence[tuple[Side, Priced]]) -> dict[str, int | None]:
    own = {side.run_id: len(one.measured_ns) for side, one in found if side.bundle.kind != "replay"}
    measured = [len(one.measured_ns) for side, one in found if side.bundle.kind == "replay"]
    return {frame.measured.run_id: measured[0], **own} if measured else {**own}


def _zero(span: Span, dark: bool) -> dict[str, Any]:
    ends = np.array([span.start_ns / 1e9, span.end_ns / 1e9])
    return figures.reference_line("no error", ends, np.zeros(2), dark=dark)


def _level(side: Side, models: Mapping[str, list[Side]], held: Priced, name: str, span: Span) -> Series:
    own = (held.classes == name) & np.isfinite(held.start_s)
    width = max(span.length_ns / 1e9 / BINS, 1e-9)
    bins = np.clip((held.start_s[own] - span.start_ns / 1e9) // width, 0, BINS - 1).astype(np.int64)
    count = np.bincount(bins, minlength=BINS)
    keep = count >= FEWEST
    model = np.bincount(bins, held.model_ns[own], BINS)[keep]
    measured = np.bincount(bins, held.measured_ns[own], BINS)[keep]
    middle = span.start_ns / 1e9 + (np.arange(BINS)[keep] + 0.5) * width
    shared = names(models[side.run_id])
    return Series(
        side.role, side.name if shared == side.role.name else f"{shared}: the same model", middle, model / measured - 1
    )


def _phases(held: Priced) -> list[str]:
    """Phases in order of time."""
    names, first = np.unique(held.phases, return_index=True)
    return [str(name) for name in names[np.argsort(first)]]


def _by_phase(side: Side, models: Mapping[str, list[Side]], held: Priced) -> list[dict[str, Any]]:
    rows = []
    for name in passes.CLASS_AXES:
        for phase in _phases(held):
            own = (held.classes == name) & (held.phases == phase)
            if own.any():
                low, high = np.percentile(held.error[own], [10, 90])
                rows.append(
                    {
                        "side": names(models[side.run_id]),
                        "class": name,
                        "phase": phase,
                        "passes": int(own.sum()),
                        "measured_ms": held.measured_ns[own].mean() / 1e6,
                        "model_ms": held.model_ns[own].mean() / 1e6,
                        "error": held.level(own),
                        "p10": float(low),
                        "p90": float(high),
                    }
                )
    return rows


def _shift(side: Side, models: Mapping[str, list[Side]], held: Priced) -> str:
    """How far the level lies in warm-up and in profile, and how far it moves between them."""
    levels = {phase: held.level(held.phases == phase) for phase in ("warmup", "profile")}
    known = {phase: level for phase, level in levels.items() if level is not None}
    words = {"warmup": "warm-up", "profile": "profile"}
    said = ", ".join(f"{style.gap(level)} in {words[phase]}" for phase, level in known.items())
    if not said:
        return ""
    moved = f"; the level moves by {100 * (known['profile'] - known['warmup']):+.1f} points" if len(known) == 2 else ""
    where = "" if side.bundle.kind == "replay" else " on its own passes"
    return f"{names(models[side.run_id]).capitalize()}: the model's total{where} is {said}{moved}."
