"""Error of a metric by input and output length of the shared source-turns: a heat map, and the turns of a cell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from dashboard.charts import figures
from dashboard.charts.answer import Answer, Column, answer
from dashboard.charts.comparison.number_table import WITHHELD, withheld
from dashboard.charts.figures import Axis, Figure
from dashboard.compare.rows import refused
from dashboard.frame import Frame, Side, header
from dashboard.metrics import Metric
from dashboard.queries import lengths
from dashboard.queries.percentiles import EDGES, bucket_label
from dashboard.store import Store

ERRORS = {"median": "median_gap", "means": "gap_of_means"}
"""What colours a cell, and the column that holds it."""
WIDEST = 0.5
"""The colours end at this error at the latest; the numbers in the cells go on."""
FEW = 5
"""A cell of fewer source-turns says so."""


def errors(frame: Frame, store: Store, side: Side, metric: Metric, kind: str) -> tuple[Answer, Figure]:
    """The heat map of one candidate; colour and number of a cell are its error, and below stands its n."""
    result = lengths.pair_errors(store, frame.measured.run_id, side.run_id, metric, frame.population)
    columns = [
        Column("input", "Input (tokens)", pinned=True),
        Column("output", "Output (tokens)", pinned=True),
        Column("turns", "Source-turns", "%d"),
        Column("median_gap", "Median gap", "percent", "median of replay / measured - 1 over the turns"),
        Column("gap_of_means", "Gap of the means", "percent", "mean replay / mean measured - 1"),
        Column("measured", f"Mean, measured ({metric.unit})", "%.2f"),
        Column("replay", f"Mean, replay ({metric.unit})", "%.2f"),
    ]
    rows = [] if result.not_recorded else result.rows()
    shared = sum(row["turns"] for row in rows)
    words = header(
        frame,
        f"{metric.label}: {metric.definition}. Over source-turns that succeeded once on both sides, by the lengths of "
        "the measured request; turns are paired, so what a side alone served is in no cell. n: shared "
        "source-turns with a value on both sides.",
    )
    told = answer(result, columns, {frame.measured.run_id: shared, side.run_id: shared}, words)
    why = _apart(frame, store, side, metric)
    if why:
        return replace(told, rows=pa.table({}), not_recorded=why), {"data": [], "layout": {}}
    if not rows:
        return replace(told, empty="The two sides share no source-turn with a value."), {"data": [], "layout": {}}
    table = told.rows
    for at, (name, column) in enumerate((("input", "input_tokens"), ("output", "output_tokens"))):
        labels = [_bucket(column, row[f"{name}_bucket"]) for row in rows]
        table = table.add_column(at, name, pa.array(labels, pa.string()))
    for name in ("measured", "replay"):
        values = [metric.shown(row[name]) for row in rows]
        table = table.set_column(table.column_names.index(name), name, pa.array(values, pa.float64()))
    return replace(told, rows=table), _map(frame, rows, ERRORS[kind])


def _apart(frame: Frame, store: Store, side: Side, metric: Metric) -> str:
    """Why no error is shown; empty where one may be."""
    if said := refused(store, frame.measured.run_id, side.run_id, metric.name):
        return f"Not comparable: {said}"
    if withheld(frame, side):
        return f"The runs are {WITHHELD}: gaps are withheld until that is acknowledged."
    return ""


def _bucket(by: str, bucket: int) -> str:
    edges = EDGES[by]
    return bucket_label(by, edges[bucket - 1], edges[bucket] if bucket < len(edges) else None)


def _map(frame: Frame, rows: list[dict[str, Any]], column: str) -> Figure:
    xs = sorted({int(row["input_bucket"]) for row in rows})
    ys = sorted({int(row["output_bucket"]) for row in rows})
    x_names, y_names = [_bucket("input_tokens", x) for x in xs], [_bucket("output_tokens", y) for y in ys]
    z = np.full((len(ys), len(xs)), np.nan, dtype=np.float32)
    text = [["" for _ in xs] for _ in ys]
    across, up, keys, words = [], [], [], []
    for row in rows:
        at, to = xs.index(row["input_bucket"]), ys.index(row["output_bucket"])
        error, n = row[column], int(row["turns"])
        shown = "no ratio" if error is None else f"{100 * float(error):+.1f} %"
        if error is not None:
            z[to, at] = error
        text[to][at] = f"{shown}<br>n {n:,}"
        across.append(x_names[at])
        up.append(y_names[to])
        keys.append(f"{row['input_bucket']}.{row['output_bucket']}")
        words.append(f"{shown}, n {n:,}{': few' if n < FEW else ''}")
    known = np.abs(z[np.isfinite(z)])
    limit = float(min(max(known.max(initial=0.0), 0.05), WIDEST))
    figure = figures.heat(
        x_names,
        y_names,
        z,
        Axis("input length, tokens"),
        Axis("output length, tokens"),
        legend=header(frame, "replay / measured - 1"),
        dark=frame.dark,
        limit=limit,
        text=text,
        percent=True,
        height=110 + 44 * len(ys),
    )
    figure["data"][0]["hoverinfo"] = "skip"  # the marks over the cells answer
    figure["data"].append(figures.handles(across, up, keys, words))
    return figure


def turns(frame: Frame, store: Store, side: Side, metric: Metric, cell: tuple[int, int]) -> tuple[Answer, str]:
    """The source-turns of a cell with both values, the largest difference first; and what the cell is, in words."""
    result = lengths.pair_turns(store, frame.measured.run_id, side.run_id, metric, frame.population, cell)
    unit, decimals = metric.unit, "%.1f" if metric.unit == "ms" else "%d"
    columns = [
        Column("turn", "Source-turn", pinned=True),
        Column("measured", f"{metric.label}, measured ({unit})", decimals),
        Column("replay", f"{metric.label}, replay ({unit})", decimals),
        Column("difference", f"Difference ({unit})", decimals.replace("%", "%+")),
        Column("gap", "Gap", "percent"),
        Column("input_tokens", "Input (tokens)", "%d"),
        Column("output_tokens", "Output, measured (tokens)", "%d"),
        Column("replay_output_tokens", "Output, replay (tokens)", "%d"),
    ]
    told = answer(result, columns, dict.fromkeys((frame.measured.run_id, side.run_id), len(result)))
    table = told.rows
    for name in ("measured", "replay", "difference") if table.num_rows else ():
        values = [metric.shown(value) for value in table.column(name).to_pylist()]
        table = table.set_column(table.column_names.index(name), name, pa.array(values, pa.float64()))
    where = f"input {_bucket('input_tokens', cell[0])}, output {_bucket('output_tokens', cell[1])}"
    full = f"The first {lengths.MOST_TURNS} are listed." if len(result) == lengths.MOST_TURNS else ""
    return replace(told, rows=table, partly=full), where


def cell_of(text: str) -> tuple[int, int] | None:
    """Buckets of input and output length of a cell as a link names it, ``4.2``; None where there is no such cell."""
    first, dot, second = text.partition(".")
    if not dot or not first.isdecimal() or not second.isdecimal():
        return None
    cell = int(first), int(second)
    inside = 1 <= cell[0] <= len(EDGES["input_tokens"]) and 1 <= cell[1] <= len(EDGES["output_tokens"])
    return cell if inside else None
