"""The history of a number over the runs of one experiment, as a chart over time, and what stays out of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from dashboard.charts import style
from dashboard.charts.answer import Answer, Column
from dashboard.charts.comparison.number_table import scaled, unit_of
from dashboard.charts.figures import Axis, Figure, compose
from dashboard.compare.history import FEWEST, MOST, Point
from dashboard.compare.numbers import Key
from dashboard.frame import Frame

OUT = ("#B34700", "#F0A640")


def history(frame: Frame, key: Key, points: Sequence[Point]) -> tuple[Answer, Figure]:
    """The number of every run of the series over the time that it was written, with its bootstrap."""
    name = f"{key.label} {key.statistic.replace('_', ' ')}"
    columns = [
        Column("when", "Written (UTC)", pinned=True, width=150),
        Column("run", "Run", width=230),
        Column("value", f"{name} ({unit_of(key.unit)})", "%.6g"),
        Column("low", f"Bootstrap from ({unit_of(key.unit)})", "%.6g"),
        Column("high", f"Bootstrap to ({unit_of(key.unit)})", "%.6g"),
        Column("line", "Beside the others", width=130),
        Column("n", "n", "%d"),
        Column("failed", "Failed checks", width=200),
        Column("title", "Title", width=260),
    ]
    rows = [
        {
            "when": said_when(one.member.created_unix_ns),
            "run": one.member.run_id,
            "value": scaled(one.value.value, key.unit),
            "low": scaled(one.bootstrap.low, key.unit) if one.bootstrap else None,
            "high": scaled(one.bootstrap.high, key.unit) if one.bootstrap else None,
            "line": one.line,
            "n": one.value.n,
            "failed": ", ".join(one.member.failed) or None,
            "title": one.member.title,
        }
        for one in points
    ]
    kinds = {c.name: pa.int64() if c.format == "%d" else pa.float64() if c.format else pa.string() for c in columns}
    words = (
        f"{key.label}: {key.definition}. Runs of one identity only, by the time that their files were written. Out of "
        "line: outside of the range of the other sound runs by more than its width, while its own bootstrap does not "
        f"reach that range; it takes {FEWEST} others. At most the latest {MOST} runs."
    )
    table = pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()})
    n = {one.member.run_id: one.value.n for one in points}
    return Answer(table, "", columns, n, words), _figure(frame, key, points, name)


def said_when(unix_ns: int | None) -> str | None:
    """A time of day in UTC; None where it is unknown."""
    return None if unix_ns is None else datetime.fromtimestamp(unix_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _figure(frame: Frame, key: Key, points: Sequence[Point], name: str) -> Figure:
    """One mark per run: filled for the run of the page, a cross for one that failed, orange where it is out of line."""
    shown = [one for one in points if one.value.value is not None and one.member.created_unix_ns is not None]
    if not shown:
        return {"data": [], "layout": {}}
    dark = frame.dark
    own = frame.measured.role.colour(dark)
    factor = scaled(1.0, key.unit) or 1.0
    values = factor * np.array([one.value.value for one in shown], dtype=np.float64)
    above = [factor * (one.bootstrap.high - (one.value.value or 0.0)) if one.bootstrap else 0.0 for one in shown]
    below = [factor * ((one.value.value or 0.0) - one.bootstrap.low) if one.bootstrap else 0.0 for one in shown]
    symbols = [
        "x" if one.member.failed else "circle" if one.member.run_id == frame.measured.run_id else "circle-open"
        for one in shown
    ]
    trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": [said_when(one.member.created_unix_ns) for one in shown],
        "y": values.astype(np.float32),
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": np.maximum(above, 0).astype(np.float32),
            "arrayminus": np.maximum(below, 0).astype(np.float32),
            "thickness": 1,
            "width": 4,
            "color": "rgba(128,128,136,0.8)",
        },
        "line": {"color": "rgba(128,128,136,0.5)", "width": 1},
        "marker": {
            "symbol": symbols,
            "size": 10,
            "color": [style.pick(OUT, dark) if one.line == "out of line" else own for one in shown],
        },
        "customdata": [f"{one.member.run_id}: {one.line}" for one in shown],
        "hovertemplate": "%{customdata}<br>%{x}: %{y:.6~g}<extra></extra>",
    }
    figure = compose([trace], Axis("written, UTC"), Axis(f"{name}, {unit_of(key.unit)}"), dark=dark, height=280)
    figure["layout"]["xaxis"] |= {"type": "date"}
    return figure


def kept_out(found: Sequence[tuple[str, int, int]]) -> str:
    """Which identity fields keep how many measured runs out of the series, in a sentence."""
    if not found:
        return "No other measured run is kept out of the series."
    most = 8
    words = [
        f"{label} {count:,}" + (f" ({alone:,} by it alone)" if alone else "") for label, count, alone in found[:most]
    ]
    rest = f", and {len(found) - most} more fields" if len(found) > most else ""
    return f"Measured runs kept out of the series, by field that is not the same: {', '.join(words)}{rest}."
