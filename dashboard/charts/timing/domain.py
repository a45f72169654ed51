"""Where a replay's timing was measured, under the queries that the replay put to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from dashboard.charts import figures, style
from dashboard.charts.answer import Answer, Column, in_units
from dashboard.charts.figures import Axis, Figure
from dashboard.charts.passes.passes import WORDS
from dashboard.frame import Frame, Side
from dashboard.queries import coverage
from dashboard.store import Store
from engine.timing.coverage import measured_points

PLANES = {
    "decode": (Axis("KV per request (tokens)", log=True), Axis("decode requests", log=True)),
    "prefill": (Axis("new tokens", log=True), Axis("KV per prompt (tokens)", log=True)),
}
MOST_KNOTS = 600
"""Drawn at most, evenly thinned: a browser draws marks one by one."""
KNOT = ("#77777F", "#9A9AA2")


def domain_map(frame: Frame, store: Store, replay: Side, pass_class: str) -> tuple[Answer, Figure, str]:
    """Measured knots (crosses) under the queries (marks, larger with more modelled time, coloured by resolution)."""
    planes = coverage.PLANES[pass_class]
    ranks, combined = _layout(replay)
    asked = ranks if combined else 1
    results = [(plane, coverage.query_map(store, replay.run_id, pass_class, plane, asked)) for plane in planes]
    panels, tables, knots = [], [], {plane: _knots(store, replay, pass_class, plane) for plane in planes}
    for plane, result in results:
        if result.not_recorded or not len(result):
            continue
        marks = [_crosses(*knots[plane], frame.dark)] if len(knots[plane][0]) else []
        marks += _queries(result.rows(), frame.dark)
        panels.append((f"{plane} part", _plane(plane, marks, frame.dark)))
        rows = in_units(result.table)
        tables.append(rows.add_column(0, "plane", pa.array([plane] * rows.num_rows, pa.string())))
    figure: Figure = {"data": [], "layout": {}}
    if len(panels) == 1:
        figure = panels[0][1]
        figure["layout"] |= {"height": 400, "showlegend": True}
    elif panels:
        figure = figures.small_multiples(panels, columns=len(panels), height=360, gap=0.1)
    columns = [
        Column("plane", "Part"),
        Column("resolution", "Resolution"),
        Column("x", "Mean KV per request, or new tokens", "%.0f"),
        Column("y", "Mean decode requests, or KV per prompt", "%.1f"),
        Column("geometries", "Distinct queries", "%d"),
        Column("queries", "Queries", "%d"),
        Column("modelled_ms", "Modelled time (ms)", "%.1f"),
        Column("time_share", "Share of the class's time", "percent"),
    ]
    first = results[0][1]
    n = 0 if first.not_recorded else sum(row["queries"] for row in first.rows())
    told = Answer(
        pa.concat_tables(tables) if tables else pa.table({}),
        "\n\n".join(result.sql for _, result in results),
        columns,
        {replay.run_id: n},
        "A mark stands for the queries of a cell (half octaves of tokens, exact numbers of decode requests) with one "
        "resolution, at their mean geometry; a mixed query has that of its worse part in both planes. Crosses are the "
        "points at which the timing was measured.",
        first.not_recorded,
        empty=f"This replay asked for no {WORDS[pass_class]} pass.",
    )
    return told, figure, _words(replay, knots)


def _knots(store: Store, replay: Side, pass_class: str, plane: str) -> tuple[np.ndarray, np.ndarray]:
    """Measured points on a plane: those of the model, or of the passes that are the model."""
    timing = replay.bundle.lineage.get("timing") or {}
    nothing = np.zeros(0), np.zeros(0)
    if timing.get("kind") == "measured":
        run_id = (timing.get("sources") or [{}])[0].get("run_id", "")
        if run_id not in {entry.run_id for entry in store.catalogue() if entry.state == "ok"}:
            return nothing
        found = coverage.domain(store, run_id, pass_class, plane)
        return nothing if found.not_recorded else (found.array("x"), found.array("y"))
    model = timing.get("model")
    if not isinstance(model, dict):
        return nothing
    points = measured_points(model, timing.get("composition"))[plane]
    names = ("kv_per_request", "batch") if plane == "decode" else ("new_tokens", "kv_per_prompt")
    x, y = (np.array(points[name], np.float64) for name in names)
    ranks, combined = _layout(replay)
    return x, y / ranks if plane == "decode" and not combined else y


def _layout(replay: Side) -> tuple[int, bool]:
    """Attention-DP ranks that an anchor's batches are spread over, and whether a query is about all of them.

    An anchor counts the requests of all ranks; every other source looks a query up as it is.
    """
    lineage = replay.bundle.lineage
    if (lineage.get("timing") or {}).get("kind") != "anchor":
        return 1, False
    config = lineage.get("config") or {}
    return config.get("attention_dp", 1), config.get("dp_price") == "combined"


def _words(replay: Side, knots: dict[str, tuple[np.ndarray, np.ndarray]]) -> str:
    """What the crosses are, and what answers where there are none."""
    timing = replay.bundle.lineage.get("timing") or {}
    kind = timing.get("kind")
    count = " and ".join(f"{len(x):,} of the {plane} part" for plane, (x, _) in knots.items())
    if kind in ("analytic", "fixed"):
        return f"The timing of this replay is {kind}: it rests on no measured pass, so there are no measured points."
    if not any(len(x) for x, _ in knots.values()):
        return "The record of this replay holds no measured points of its timing."
    what = {
        "fpm": "points of the model, fitted on " + ", ".join(_fitted(replay)),
        "measured": "cells of the recorded passes of " + ", ".join(_fitted(replay)),
        "anchor": f"points of anchor {timing.get('anchor', '')}",
        "table": f"rows of table {timing.get('table', '')}",
    }.get(str(kind), "measured points")
    thinned = f" ({MOST_KNOTS:,} at most are drawn)" if any(len(x) > MOST_KNOTS for x, _ in knots.values()) else ""
    words = f"Crosses: {what}: {count}{thinned}."
    fallback = (timing.get("fallback") or {}).get("kind")
    return words + (f" What they do not cover is answered by the {fallback} source." if fallback else "")


def _fitted(replay: Side) -> list[str]:
    found = []
    for one in (replay.bundle.lineage.get("timing") or {}).get("sources") or []:
        phases = one.get("phases")
        found.append(one.get("run_id", "?") + (f" ({', '.join(phases)})" if phases else ""))
    return found or ["runs that its record does not name"]


def _crosses(x: np.ndarray, y: np.ndarray, dark: bool) -> dict[str, Any]:
    every = -(-len(x) // MOST_KNOTS)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "measured points",
        "x": _shown(x[::every]),
        "y": _shown(y[::every]),
        "hovertemplate": "measured at %{x:,.0f}, %{y:,.0f}<extra></extra>",
        "marker": {"symbol": "cross-thin-open", "size": 6, "color": style.pick(KNOT, dark), "line": {"width": 1}},
    }


def _queries(rows: list[dict[str, Any]], dark: bool) -> list[dict[str, Any]]:
    """One trace per resolution, best first."""
    traces = []
    for name, colours in style.RESOLUTION.items():
        held = [row for row in rows if row["resolution"] == name]
        if not held:
            continue
        colour = style.pick(colours, dark)
        size = [5 + 24 * (row["time_share"] or 0.0) ** 0.5 for row in held]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": _shown(np.array([row["x"] for row in held], np.float64)),
                "y": _shown(np.array([row["y"] for row in held], np.float64)),
                "text": [
                    f"{row['queries']:,} queries, {100 * (row['time_share'] or 0.0):.1f} % of the class's time"
                    for row in held
                ],
                "hovertemplate": f"%{{x:,.0f}}, %{{y:,.0f}}<br>%{{text}}<br>{name}<extra></extra>",
                "marker": {
                    "symbol": style.RESOLUTION_SYMBOL[name],
                    "size": np.array(size, np.float32),
                    "color": colour,
                    "opacity": 0.75,
                    "line": {"width": 1.5, "color": colour},
                },
            }
        )
    return traces


def _shown(values: np.ndarray) -> np.ndarray:
    """Nothing stands at 1 of a logarithmic axis, which says 0 there."""
    return np.maximum(values, 1.0).astype(np.float32)


def _plane(plane: str, traces: list[dict[str, Any]], dark: bool) -> Figure:
    x, y = PLANES[plane]
    figure = figures.compose(traces, x, y, dark=dark)
    if plane == "prefill":
        axis = figure["layout"]["yaxis"]
        axis["ticktext"] = [
            "0" if value == 1.0 else text for value, text in zip(axis["tickvals"], axis["ticktext"], strict=True)
        ]
    return figure
