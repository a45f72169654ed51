"""Charts of forward passes: classes, error at equal geometry, the passes of a cell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from dashboard.charts import figures, style
from dashboard.charts.answer import Answer, Column, answer, stack
from dashboard.charts.figures import Axis, Figure
from dashboard.frame import Frame, Side
from dashboard.metrics import PASS_CLASSES
from dashboard.queries import passes
from dashboard.queries.identity import repeats
from dashboard.store import Store

WORDS = {"prefill_only": "prefill only", "mixed": "mixed", "decode_only": "decode only", "idle": "idle"}
INSIDE = "~ inside"
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
    Column("who", "Who was in it (new tokens)"),
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
    figure = figures.small_multiples(panels, columns=2, height=70 + 34 * len(shown), gap=0.14)
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


def geometry(frame: Frame, store: Store, replay: Side) -> tuple[Answer, Figure, str]:
    """Signed error of the mean duration at equal geometry, a map per class, with dots for the time that a cell holds;
    and in words the classes that have no map."""
    result = passes.geometry_map(store, frame.measured.run_id, replay.run_id, frame.population)
    cells = [] if result.not_recorded else result.rows()
    noise = _noise(frame, store, replay) if cells else {}
    for row in cells:
        row["noise"] = noise.get(_place(row))
        row["against"] = _against(row["error"], row["noise"])
    rows = [row for row in cells if row["error"] is not None]
    largest = max((abs(row["error"]) for row in rows), default=0.1)
    most = max((row["measured_time_share"] for row in rows), default=1.0) or 1.0
    panels = []
    for name in passes.CLASS_AXES:
        held = [row for row in rows if row["class"] == name]
        if held:
            title = f"{WORDS[name]}: {100 * sum(row['measured_time_share'] for row in held):.1f} % of measured time"
            panels.append((title, _map(name, held, most, frame.dark)))
    figure = (
        figures.small_multiples(panels, columns=len(panels), height=300, gap=0.13)
        if panels
        else {"data": [], "layout": {}}
    )
    limit = min(max(largest, 0.05), 0.5)
    figure["layout"] |= figures.gap_scale(limit, "replay / measured - 1", frame.dark)
    columns = [
        Column("class", "Class"),
        Column("x_cell", "Cell across", "%d"),
        Column("y_cell", "Cell up", "%d"),
        Column("error", "Error", "percent"),
        Column("noise", "Noise (±)", "percent", "largest error of a repeat of the measured run in the same cell"),
        Column("against", "Against the noise"),
        Column("duration_ms", "Worth in replayed passes (ms)", "%+.1f"),
        Column("measured_passes", "Measured passes", "%d"),
        Column("replay_passes", "Replay passes", "%d"),
        Column("measured_time_share", "Share of measured time", "percent"),
        Column("replay_time_share", "Share of replayed time", "percent"),
    ]
    words = (
        "Cells are half octaves of token counts and exact counts of requests. The error is that of the mean duration, "
        "weighted by the measured passes of the finer cells that fall together; cells that one side lacks have none. "
        "Shares are of all pass time. The noise of a cell is the largest error of a repeat in it."
    )
    drawn = {row["class"] for row in rows}
    bare = sorted({row["class"] for row in cells} - drawn)
    said = "".join(f" {WORDS[name].capitalize()}: no cell that both sides hold." for name in bare)
    found = answer(result, columns, counts(frame, store), words)
    table = found.rows
    for name, kind in (("noise", pa.float64()), ("against", pa.string())) if cells else ():
        table = table.append_column(name, pa.array([row[name] for row in cells], kind))
    return replace(found, rows=table), figure, said


def _place(row: Mapping[str, Any]) -> tuple[str, int, int]:
    return row["class"], row["x_cell"], row["y_cell"]


def _noise(frame: Frame, store: Store, replay: Side) -> dict[tuple[str, int, int], float]:
    """By cell: the largest error of a repeat of the measured run; only cells that a repeat holds."""
    if frame.population.matched:
        return {}
    found: dict[tuple[str, int, int], float] = {}
    for other in repeats(store, frame.measured.run_id):
        if other != replay.run_id:
            for row in passes.geometry_map(store, frame.measured.run_id, other, frame.population).rows():
                if row["error"] is not None:
                    found[_place(row)] = max(found.get(_place(row), 0.0), abs(row["error"]))
    return found


def _against(error: float | None, noise: float | None) -> str | None:
    if error is None:
        return None
    return "unknown" if noise is None else INSIDE if abs(error) <= noise else "outside"


def _spoken(row: Mapping[str, Any]) -> str:
    if row["noise"] is None:
        return "noise unknown: no repeat holds this cell"
    where = "inside" if row["against"] == INSIDE else "outside"
    return f"{where} the noise of ±{100 * row['noise']:.1f} %"


def _map(pass_class: str, held: Sequence[Mapping[str, Any]], most: float, dark: bool) -> Figure:
    """The map of one class: colour is error, a dot's area the share of measured time, and each cell can be clicked."""
    x_axis, y_axis = passes.CLASS_AXES[pass_class]
    xs, ys = _span(row["x_cell"] for row in held), _span(row["y_cell"] for row in held)
    names_x = [cell_name(cell, x_axis == "decode_requests") for cell in xs]
    names_y = [cell_name(cell, y_axis == "decode_requests") for cell in ys]
    z = np.full((len(ys), len(xs)), np.nan, dtype=np.float32)
    for row in held:
        z[ys.index(row["y_cell"]), xs.index(row["x_cell"])] = row["error"]
    across, up = Axis(passes.AXES[x_axis]), Axis(passes.AXES[y_axis])
    figure = figures.heat(names_x, names_y, z, across, up, legend="", dark=dark, limit=0.5)
    trace = figure["data"][0]
    for own in ("colorscale", "colorbar", "zmin", "zmax", "zmid"):
        trace.pop(own)
    trace |= {"coloraxis": "coloraxis", "hoverinfo": "skip", "name": "error"}  # the marks over the cells answer
    x = [names_x[xs.index(row["x_cell"])] for row in held]
    y = [names_y[ys.index(row["y_cell"])] for row in held]
    shares = np.array([row["measured_time_share"] for row in held])
    dots = {
        "type": "scatter",
        "mode": "markers",
        "name": "share of measured time",
        "x": x,
        "y": y,
        "hoverinfo": "skip",
        "marker": {
            "size": (2 + 12 * np.sqrt(shares / most)).astype(np.float32),
            "symbol": ["circle-open" if row["against"] == INSIDE else "circle" for row in held],
            "color": "#F2F0EC" if dark else "#202024",
            "opacity": 0.75,
            "line": {"width": 1},
        },
        "unselected": {"marker": {"opacity": 0.75}},  # a click on a cell fades nothing
    }
    handles = figures.handles(
        x,
        y,
        [f"{pass_class}:{row['x_cell']}.{row['y_cell']}" for row in held],
        [
            f"error {100 * row['error']:+.1f} %, worth {row['duration_ns'] / 1e6:+,.0f} ms<br>{_spoken(row)}<br>"
            f"{row['measured_passes']:,} measured, {row['replay_passes']:,} replay passes<br>"
            f"{100 * row['measured_time_share']:.1f} % of measured time, "
            f"{100 * row['replay_time_share']:.1f} % of replayed time"
            for row in held
        ],
    )
    figure["data"] += [dots, handles | {"name": "cells"}]
    return figure


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
    """The passes of every side inside one cell, and who was in them."""
    results = [
        (side, passes.cell_passes(store, side.run_id, frame.population_of(side), pass_class, cell))
        for side in frame.sides
    ]
    return stack(results, PASS_COLUMNS, {side.run_id: None if r.not_recorded else len(r) for side, r in results})


def turns_in(found: Answer, row: int) -> list[str]:
    """The source-turns that were in the pass of a row."""
    if "turns" not in found.rows.column_names or row >= found.rows.num_rows:
        return []
    return list(found.rows.column("turns")[row].as_py() or ())
