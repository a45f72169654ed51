"""Charts of forward passes: classes, equal geometry, durations along an axis, timeline."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from dashboard.charts import figures, style
from dashboard.charts.answer import Answer, Column, answer, stack
from dashboard.charts.figures import Axis, Figure, Series
from dashboard.frame import Frame, Side
from dashboard.metrics import PASS_CLASSES
from dashboard.pricing import price, timing_of
from dashboard.queries import passes
from dashboard.queries.ranges import Span
from dashboard.store import Result, Store

WORDS = {"prefill_only": "prefill only", "mixed": "mixed", "decode_only": "decode only", "idle": "idle"}
CELL = re.compile(r"(-?\d{1,4})[.](-?\d{1,4})")
PASS_COLUMNS = (
    Column("start_s", "Start (s)", "%.3f"),
    Column("duration_ms", "Duration (ms)", "%.2f"),
    Column("num_prefill_requests", "Prefill requests", "%d"),
    Column("sum_prefill_tokens", "New tokens", "%d"),
    Column("sum_prefill_kv_tokens", "Prefill KV (tokens)", "%d"),
    Column("num_decode_requests", "Decode requests", "%d"),
    Column("sum_decode_kv_tokens", "Decode KV (tokens)", "%d"),
    Column("num_waiting", "Waiting", "%d"),
    Column("resolution", "Resolution"),
)


def counts(frame: Frame, store: Store, pass_class: str | None = None) -> dict[str, int | None]:
    """Passes of the population's phases on each side (of one class): the ``n`` of pass charts."""
    found: dict[str, int | None] = {}
    for side in frame.sides:
        result = passes.classes(store, side.run_id, frame.population_of(side))
        found[side.run_id] = (
            None
            if result.not_recorded
            else sum(
                row["passes"]
                for row in result.rows()
                if (row["class"] == pass_class if pass_class else row["class"] != "idle")
            )
        )
    return found


def classes(frame: Frame, store: Store) -> tuple[Answer, Figure]:
    """Counts and time share by class: few mixed passes can hold much of the time."""
    results = [(side, passes.classes(store, side.run_id, frame.population_of(side))) for side in frame.sides]
    shown = [
        (side, {row["class"]: row for row in result.rows()}) for side, result in results if not result.not_recorded
    ]
    panels = []
    for column, title in (("pass_share", "share of passes"), ("time_share", "share of pass time")):
        parts = [
            (
                WORDS[name],
                style.pick(style.CLASSES[name], frame.dark),
                [row.get(name, {}).get(column) or 0 for _, row in shown],
            )
            for name in PASS_CLASSES[:3]
        ]
        x = Axis(title, percent=True, range=(0, 1))
        panels.append(
            (
                title,
                figures.stacked_shares(
                    [side.role.name for side, _ in shown][::-1],
                    [(n, c, v[::-1]) for n, c, v in parts],
                    x,
                    dark=frame.dark,
                ),
            )
        )
    figure = figures.small_multiples(panels, columns=2, height=70 + 34 * len(shown))
    figure["layout"]["barmode"] = "stack"
    columns = [
        Column("class", "Class"),
        Column("passes", "Passes", "%d"),
        Column("pass_share", "Share of passes", "percent"),
        Column("time_ms", "Time (ms)", "%.0f"),
        Column("time_share", "Share of time", "percent"),
        Column("mean_ms", "Mean (ms)", "%.2f"),
        Column("p50_ms", "p50 (ms)", "%.2f"),
        Column("p99_ms", "p99 (ms)", "%.2f"),
    ]
    return stack(results, columns, counts(frame, store)), figure


def geometry(frame: Frame, store: Store, replay: Side, pass_class: str) -> tuple[Answer, Figure]:
    """Signed error of the mean duration in cells of equal geometry that both sides hold."""
    result = passes.geometry_map(store, frame.measured.run_id, replay.run_id, frame.population, pass_class)
    x_axis, y_axis = passes.CLASS_AXES[pass_class]
    figure: Figure = {"data": [], "layout": {}}
    if not result.not_recorded and len(result):
        held = [row for row in result.rows() if row["error"] is not None]
        xs, ys = _span(row["x_cell"] for row in held), _span(row["y_cell"] for row in held)
        names_x = [cell_name(cell, x_axis == "decode_requests") for cell in xs]
        names_y = [cell_name(cell, y_axis == "decode_requests") for cell in ys]
        z = np.full((len(ys), len(xs)), np.nan, dtype=np.float32)
        text = [[""] * len(xs) for _ in ys]
        for row in held:
            i, j = ys.index(row["y_cell"]), xs.index(row["x_cell"])
            z[i, j] = row["error"]
            text[i][j] = f"{100 * row['error']:+.0f}"
        largest = float(np.nanmax(np.abs(z))) if np.isfinite(z).any() else 0.1
        figure = figures.heat(
            names_x,
            names_y,
            z,
            Axis(passes.AXES[x_axis]),
            Axis(passes.AXES[y_axis]),
            legend="replay / measured - 1",
            dark=frame.dark,
            limit=min(max(largest, 0.05), 0.5),
            text=text if len(xs) * len(ys) <= 400 else None,
            percent=True,
        )
        figure["data"][0]["hoverinfo"] = "skip"  # the marks over the cells answer
        figure["data"].append(
            figures.handles(
                [names_x[xs.index(row["x_cell"])] for row in held],
                [names_y[ys.index(row["y_cell"])] for row in held],
                [f"{row['x_cell']}.{row['y_cell']}" for row in held],
                [
                    f"error {100 * row['error']:+.1f} %<br>{row['measured_passes']:,} measured, "
                    f"{row['replay_passes']:,} replay passes<br>"
                    f"{100 * (row['measured_time_share'] or 0):.1f} % of measured time"
                    for row in held
                ],
            )
        )
    columns = [
        Column("x_cell", f"Cell of {passes.AXES[x_axis]}", "%d"),
        Column("y_cell", f"Cell of {passes.AXES[y_axis]}", "%d"),
        Column("error", "Error", "percent"),
        Column("measured_passes", "Measured passes", "%d"),
        Column("replay_passes", "Replay passes", "%d"),
        Column("measured_time_share", "Share of measured time", "percent"),
    ]
    words = (
        "Cells are half octaves of token counts and exact counts of requests. The error is that of the mean duration, "
        "weighted by the measured passes of the finer cells that fall together; cells that one side lacks have none."
    )
    return answer(result, columns, counts(frame, store, pass_class), words), figure


def _span(cells: Iterable[int]) -> list[int]:
    found = sorted(set(cells)) or [0]
    if found[0] >= 0 or len(found) == 1:
        return list(range(found[0], found[-1] + 1))
    return [-1, *range(found[1], found[-1] + 1)]  # no cells between zero tokens and the first that holds any


def cell_name(cell: int, exact: bool = False) -> str:
    """The counts that a cell holds: half octaves, or one count where requests are counted ``exact``."""
    if exact:
        return str(cell)
    if cell < 0:
        return "0"
    low, high = passes.cell_bounds(cell)
    first, last = int(np.ceil(low - 1e-9)), int(np.ceil(high - 1e-9)) - 1
    return f"{first:,}" if last <= first else f"{first:,}–{last:,}"


def cell_of(pass_class: str, text: str) -> passes.Cell | None:
    """The cell that a link or a click names (``x.y``); None where it names none."""
    match = CELL.fullmatch(text)
    if not match:
        return None
    fields = {"new_tokens": "new_cell", "prefill_kv_tokens": "prefill_kv_cell", "decode_kv_tokens": "decode_kv_cell"}
    axes = zip(passes.CLASS_AXES[pass_class], match.groups(), strict=True)
    return passes.Cell(**{fields.get(axis, axis): int(cell) for axis, cell in axes})


def in_cell(frame: Frame, store: Store, pass_class: str, cell: passes.Cell) -> Answer:
    """The passes of every side inside one cell."""
    results = [
        (side, passes.cell_passes(store, side.run_id, frame.population_of(side), pass_class, cell))
        for side in frame.sides
    ]
    return stack(results, PASS_COLUMNS, {side.run_id: None if r.not_recorded else len(r) for side, r in results})


def durations(frame: Frame, store: Store, pass_class: str, axis: str, log: bool) -> tuple[Answer, Figure]:
    """Duration along an axis: the measured passes as marks; as lines what each replay's timing says of their geometry.

    A run without a timing of its own, like a repeat of the recording, is drawn by the middle of its passes.
    """
    ids = tuple(side.run_id for side in frame.sides)
    limit = passes.axis_limit(store, ids, frame.population, pass_class, axis)
    results: list[tuple[Side, Result]] = []
    for side in frame.sides:
        population = frame.population_of(side)
        results.append((side, passes.duration_curve(store, side.run_id, population, pass_class, axis, max(limit, 1))))
    shown = [(side, result) for side, result in results if not result.not_recorded and len(result)]
    measured = next((result for side, result in shown if side is frame.measured), None)
    points, curves = [], []
    if measured is not None:
        x, role = measured.array("x"), frame.measured.role
        points.append((role, f"{role.name} p50", x, measured.array("p50_ns") / 1e6, measured.array("passes")))
        for name in ("p10_ns", "p90_ns"):
            points.append((role, f"{role.name} {name[:3]}", x, measured.array(name) / 1e6, np.ones(len(measured))))
    for side, result in shown:
        if side is frame.measured:
            continue
        timing = timing_of(store, side.run_id) if measured is not None else None
        if timing is not None and measured is not None:
            geometry = {name: measured.array(name) for name in passes.AXES}
            curves.append(
                Series(side.role, f"{side.role.name} model", measured.array("x"), price(timing, geometry) / 1e6)
            )
        else:
            curves.append(Series(side.role, f"{side.role.name} p50", result.array("x"), result.array("p50_ns") / 1e6))
    figure = figures.cloud(points, curves, Axis(passes.AXES[axis]), Axis("pass duration, ms", log=log), dark=frame.dark)
    for trace in figure["data"]:
        if trace["name"].endswith(("p10", "p90")):
            trace["marker"] |= {"symbol": "line-ew-open", "size": 8, "opacity": 0.9}
    columns = [
        Column("x", f"Mean {passes.AXES[axis]}", "%.0f"),
        Column("passes", "Passes", "%d"),
        Column("mean_ms", "Mean (ms)", "%.2f"),
        Column("p10_ms", "p10 (ms)", "%.2f"),
        Column("p50_ms", "p50 (ms)", "%.2f"),
        Column("p90_ms", "p90 (ms)", "%.2f"),
    ]
    return stack(results, columns, counts(frame, store, pass_class)), figure


def timeline(frame: Frame, store: Store, start_s: float, length_s: float) -> tuple[Answer, Figure]:
    """Batch composition over a window of time."""
    span = Span(int(start_s * 1e9), int((start_s + length_s) * 1e9))
    results = [(side, passes.timeline(store, side.run_id, span, 200)) for side in frame.sides]
    panels = []
    for column, title, scale in (
        ("decode_requests", "decode requests per pass", 1.0),
        ("new_tokens", "new tokens per pass", 1.0),
        ("longest_ns", "longest pass, ms", 1e-6),
        ("waiting", "waiting requests", 1.0),
    ):
        series = [
            Series(side.role, side.name, r.array("time_ns") / 1e9, r.array(column).astype(np.float64) * scale)
            for side, r in results
            if not r.not_recorded and len(r)
        ]
        x = Axis("s from profile start", range=(start_s, start_s + length_s))
        panels.append((title, figures.lines(series, x, Axis(title), dark=frame.dark, step=True)))
    n = {side.run_id: None if r.not_recorded else int(np.nansum(r.array("passes"))) for side, r in results}
    return stack(results, n=n), figures.small_multiples(panels, columns=2, height=200)


def balance(frame: Frame, store: Store) -> tuple[Answer, int]:
    """Work and time by rank, and how many ranks there are at most."""
    results = [(side, passes.rank_balance(store, side.run_id, frame.population_of(side))) for side in frame.sides]
    ranks = max((len(result) for _, result in results if not result.not_recorded), default=0)
    columns = [
        Column("worker_id", "Worker"),
        Column("dp_rank", "Rank", "%d"),
        Column("passes", "Passes", "%d"),
        Column("time_ms", "Time (ms)", "%.0f"),
        Column("new_tokens", "New tokens", "%d"),
        Column("decode_tokens", "Decode tokens", "%d"),
        Column("max_blocks_used", "KV blocks used at most", "%d"),
    ]
    return stack(results, columns, counts(frame, store)), ranks
