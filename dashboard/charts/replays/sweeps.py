"""Figures of a sweep: a number along one knob, a grid over two, and the Pareto front of throughput against latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dashboard.charts import figures, style
from dashboard.charts.answer import Answer, Column
from dashboard.charts.figures import Axis, Figure
from dashboard.charts.style import ROLES
from dashboard.compare.noise import Noise
from dashboard.metrics import SWEEP_NUMBERS
from dashboard.sweeps.numbers import Played, Scope, front, label_of, shown
from dashboard.sweeps.plan import Axis as KnobAxis
from dashboard.sweeps.plan import shown as in_words
from engine.knobs import BY_NAME

MOST_CELLS_WITH_TEXT = 64
HOLDS = {True: "holds", False: "fails", None: ""}


def knob_label(name: str) -> str:
    """A knob with its unit."""
    unit = BY_NAME[name].unit
    return f"{name}, {unit}" if unit and unit != name and not name.endswith(f"_{unit}") else name


def table(
    found: Sequence[Played], axes: Sequence[KnobAxis], scope: Scope, names: Sequence[str], n: Mapping[str, int | None]
) -> Answer:
    """One row per point: where it is, its numbers, whether the contract holds, and why it has no run."""
    rows: list[dict[str, Any]] = []
    for one in found:
        row: dict[str, Any] = {"run": one.run_id}
        row |= {axis.knob: in_words(value) for axis, value in zip(axes, one.point.at, strict=True)}
        for name in names:
            number = one.numbers.get(name)
            row[name] = shown(one.value(name), scope.key(name).unit)
            row[f"n_{name}"] = number.n if number else None
        row["contract"] = HOLDS[one.holds] + (f": {one.fails}" if one.fails else "")
        row["why"] = "; ".join(filter(None, (one.beside, _whys(one, names) if one.run_id else "")))
        rows.append(row)
    columns = [Column(axis.knob, knob_label(axis.knob), pinned=True) for axis in axes]
    columns += [Column(name, label_of(name, scope), "%.5g") for name in names]
    if any(one.gates for one in found):
        columns.append(Column("contract", "Contract"))
    columns += [Column("why", "Beside it", width=260)] if any(row["why"] for row in rows) else []
    columns.append(Column("run", "Run", width=280))
    return Answer(
        pa.Table.from_pylist(rows),
        "",
        columns,
        n,
        definition=" ".join(f"{SWEEP_NUMBERS[name]}: {scope.key(name).definition}." for name in names),
        empty="There are no points.",
    )


def _whys(one: Played, names: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(str(one.numbers[name].why) for name in names if one.numbers[name].value is None))


def curve(
    found: Sequence[Played],
    axis: KnobAxis,
    scope: Scope,
    name: str,
    measured: tuple[Any, float | None, Noise | None],
    dark: bool,
) -> Figure:
    """A number along one knob; the measured value with its noise as a band, and as a mark at its own setting.

    ``measured`` is the measured run's setting of the knob, its value and its noise. Points that hold the contract, or
    fail it, are told apart by filled and open marks.
    """
    unit = scope.key(name).unit
    known = [one for one in found if one.value(name) is not None]
    numeric = BY_NAME[axis.knob].type in (int, float)
    known.sort(key=lambda one: one.point.at[0] if numeric else axis.values.index(one.point.at[0]))
    x = [one.point.at[0] if numeric else in_words(one.point.at[0]) for one in known]
    y = np.array([shown(one.value(name), unit) for one in known], dtype=np.float32)
    role = ROLES[1]
    marks = [role.symbol + ("-open" if one.holds is False else "") for one in known]
    trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "points of the sweep",
        "x": x,
        "y": y,
        "customdata": [one.run_id for one in known],
        "text": [f"{one.point.words}<br>{_contract_words(one)}" for one in known],
        "hovertemplate": "%{text}<br>%{y:.4~g}<extra></extra>",
        "line": {"color": role.colour(dark), "dash": role.dash, "width": 2},
        "marker": {"symbol": marks, "size": 10, "color": role.colour(dark)},
    }
    traces = [*_band(x, measured, unit, dark), trace] if known else []
    if known and measured[1] is not None:
        traces.append(_mark(measured, unit, numeric, dark))
    categories = () if numeric else tuple(in_words(value) for value in axis.values)
    return figures.compose(
        traces, Axis(knob_label(axis.knob), categories=categories), Axis(label_of(name, scope)), dark=dark
    )


def _contract_words(one: Played) -> str:
    return "" if one.holds is None else "holds the contract" if one.holds else f"fails {one.fails}"


def _band(
    x: Sequence[Any], measured: tuple[Any, float | None, Noise | None], unit: str, dark: bool
) -> list[dict[str, Any]]:
    """The noise of the measured run over the whole range of the knob, and what redrawing adds to it."""
    spread = measured[2]
    if spread is None or len(x) < 2:
        return []
    ends = [x[0], x[-1]]
    edge = {"type": "scatter", "mode": "lines", "x": ends, "hoverinfo": "skip", "line": {"width": 0}}
    bands = [spread.interval, *([spread.wider] if spread.wider else [])]
    colours = (
        ("rgba(86,180,233,0.20)", "rgba(86,180,233,0.10)") if dark else ("rgba(0,114,178,0.14)", "rgba(0,114,178,0.07)")
    )
    traces: list[dict[str, Any]] = []
    for (low, high), fill, name in zip(bands, colours, style.NOISE_WORDS, strict=False):
        from_, to = shown(low, unit), shown(high, unit)
        traces.append({**edge, "y": [from_, from_], "showlegend": False, "name": ""})
        traces.append({**edge, "y": [to, to], "fill": "tonexty", "fillcolor": fill, "name": name})
    return traces


def _mark(measured: tuple[Any, float | None, Noise | None], unit: str, numeric: bool, dark: bool) -> dict[str, Any]:
    at, value, spread = measured
    mark: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "name": "measured",
        "x": [at if numeric else in_words(at)],
        "y": [shown(value, unit)],
        "marker": {"symbol": "circle", "size": 11, "color": ROLES[0].colour(dark)},
        "hovertemplate": "measured, at its own setting<br>%{y:.4~g}<extra></extra>",
    }
    if spread is not None and value is not None:
        above, below = shown(spread.high - value, unit), shown(value - spread.low, unit)
        mark["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [above],
            "arrayminus": [below],
            "thickness": 1.5,
        }
    return mark


def grid(found: Sequence[Played], axes: Sequence[KnobAxis], scope: Scope, name: str, dark: bool) -> Figure:
    """A number over two knobs, with the figures in the cells; a cell that fails the contract says so."""
    unit = scope.key(name).unit
    first, second = axes
    cells = {one.point.at: one for one in found}
    z = np.full((len(second.values), len(first.values)), np.nan)
    text = [["" for _ in first.values] for _ in second.values]
    handles: list[tuple[str, str, str, str]] = []
    for row, below in enumerate(second.values):
        for column, across in enumerate(first.values):
            one = cells.get((across, below))
            value = one.value(name) if one else None
            if one is None or value is None:
                continue
            z[row, column] = shown(value, unit)
            text[row][column] = f"{z[row, column]:,.4g}" + (" ✕" if one.holds is False else "")
            words = f"{one.point.words}, {z[row, column]:,.4g} {_contract_words(one)}"
            handles.append((in_words(across), in_words(below), str(one.run_id), words))
    figure = figures.heat(
        [in_words(value) for value in first.values],
        [in_words(value) for value in second.values],
        z,
        Axis(knob_label(first.knob)),
        Axis(knob_label(second.knob)),
        legend=label_of(name, scope),
        dark=dark,
        text=text,
        height=max(style.HEIGHT, 90 + 34 * len(second.values)),
    )
    if not handles:
        figure["data"] = []
        return figure
    figure["data"].append(figures.handles(*map(list, zip(*handles, strict=True))))
    return figure


def pareto(
    found: Sequence[Played],
    scope: Scope,
    names: tuple[str, str],
    measured: tuple[float | None, float | None],
    dark: bool,
) -> Figure:
    """Throughput against latency: points on the front joined and filled, dominated ones open, the measured run beside.

    ``names`` are those of the throughput and of the latency, ``measured`` the same two of the measured run.
    """
    rate, tail = names
    units = scope.key(rate).unit, scope.key(tail).unit
    on = front(found, rate, tail)
    groups = (("on the front", True), ("dominated", False))
    traces = []
    for words, wanted in groups:
        chosen = [
            one
            for one, is_on in zip(found, on, strict=True)
            if is_on == wanted and one.value(rate) is not None and one.value(tail) is not None
        ]
        chosen.sort(key=lambda one: (one.value(tail) or 0.0, one.value(rate) or 0.0))
        if chosen:
            traces.append(_group(chosen, (rate, tail), units, words, wanted, dark))
    if traces and None not in measured:
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "measured",
                "x": [shown(measured[1], units[1])],
                "y": [shown(measured[0], units[0])],
                "marker": {"symbol": "circle", "size": 11, "color": ROLES[0].colour(dark)},
                "hovertemplate": "measured<br>%{x:.4~g}, %{y:.4~g}<extra></extra>",
            }
        )
    figure = figures.compose(traces, Axis(label_of(tail, scope)), Axis(label_of(rate, scope)), dark=dark, height=380)
    figure["layout"]["showlegend"] = True
    return figure


def _group(
    chosen: Sequence[Played],
    names: tuple[str, str],
    units: tuple[str, str],
    words: str,
    on: bool,
    dark: bool,
) -> dict[str, Any]:
    colour = ROLES[1].colour(dark) if on else ROLES[4].colour(dark)
    symbol = "diamond" if on else "circle-open"
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers" if on else "markers",
        "name": words,
        "x": np.array([shown(one.value(names[1]), units[1]) for one in chosen], dtype=np.float32),
        "y": np.array([shown(one.value(names[0]), units[0]) for one in chosen], dtype=np.float32),
        "customdata": [one.run_id for one in chosen],
        "text": [f"{one.point.words}<br>{_contract_words(one)}" for one in chosen],
        "hovertemplate": "%{text}<br>%{x:.4~g}, %{y:.4~g}<extra></extra>",
        "marker": {
            "symbol": ["x-thin" if one.holds is False else symbol for one in chosen],
            "size": 11 if on else 9,
            "color": colour,
            "line": {"width": 2, "color": colour},
        },
    }
    if on:
        trace["line"] = {"color": colour, "width": 1.5, "shape": "hv"}
    return trace
