"""Figures as plain dictionaries: pure functions from arrays to what Plotly draws.

Arrays travel as float32, a line holds at most a few hundred points, and every axis carries its unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dashboard.charts import style
from dashboard.charts.style import Role
from dashboard.metrics import Estimator
from dashboard.samples import Sample

Figure = dict[str, Any]
ROW_GAP, BARE_ROW_GAP = 84, 56
"""Pixels between rows of panels, with and without titles of their x axes."""
HEAD = 24
"""Pixels above the first row of panels: its titles stand there, below the legend, however high that becomes."""
LOG_TICKS = [digit * 10.0**power for power in range(-3, 9) for digit in (1, 2, 5)]


@dataclass(frozen=True)
class Axis:
    """An axis: its title with unit, scale and, where it must survive a redraw, its range (in data units)."""

    title: str
    log: bool = False
    range: tuple[float, float] | None = None
    percent: bool = False
    categories: tuple[str, ...] = ()
    reverse: bool = False

    def layout(self, dark: bool) -> dict[str, Any]:
        """Plotly's description of this axis."""
        axis: dict[str, Any] = {
            "title": {"text": self.title, "standoff": 8},
            "gridcolor": style.GRID_DARK if dark else style.GRID_LIGHT,
            "zeroline": False,
            "automargin": True,
        }
        if self.log:
            axis |= {"type": "log", "tickvals": LOG_TICKS, "ticktext": [f"{tick:,.10g}" for tick in LOG_TICKS]}
        if self.percent:
            axis["tickformat"] = ".0%"
        if self.categories:
            axis |= {"type": "category", "categoryorder": "array", "categoryarray": list(self.categories)}
        if self.range:
            low, high = self.range
            axis["range"] = [float(np.log10(low)), float(np.log10(high))] if self.log else [low, high]
        if self.reverse:
            axis["autorange"] = "reversed"
        return axis


@dataclass(frozen=True)
class Series:
    """One line of a chart, drawn in the colour, dash and marker of its role."""

    role: Role
    name: str
    x: np.ndarray
    y: np.ndarray


def compose(traces: list[dict[str, Any]], x: Axis, y: Axis, *, dark: bool, height: int = style.HEIGHT) -> Figure:
    """A figure with one pair of axes."""
    return {
        "data": traces,
        "layout": {
            "xaxis": x.layout(dark),
            "yaxis": y.layout(dark),
            "height": height,
            "margin": {"l": 8, "r": 26, "t": 28, "b": 8},
            "legend": {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "title": {"text": ""}},
            "hovermode": "closest",
            "showlegend": len([t for t in traces if t.get("showlegend", True) and t.get("name")]) > 1,
        },
    }


def line(series: Series, *, dark: bool, step: bool = False, markers: bool = False) -> dict[str, Any]:
    """A line trace; ``step`` holds each value until the next one."""
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers" if markers else "lines",
        "name": series.name,
        "x": _f32(series.x) if series.x.dtype.kind in "fiu" else series.x,
        "y": _f32(series.y),
        "line": {"color": series.role.colour(dark), "dash": series.role.dash, "width": 2},
    }
    if step:
        trace["line"]["shape"] = "hv"
    if markers:
        trace["marker"] = {"symbol": series.role.symbol, "size": 7, "color": series.role.colour(dark)}
    return trace


def lines(
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    dark: bool = False,
    step: bool = False,
    markers: bool = False,
    height: int = style.HEIGHT,
) -> Figure:
    """Several lines over one pair of axes."""
    if y.range is None and not y.log and series:
        values = np.concatenate([np.asarray(one.y, dtype=np.float64) for one in series])
        known = values[np.isfinite(values)]
        top = 1.0 if y.percent or not known.any() else 0.0
        if known.size and known.min() == known.max() and 0 <= known.max() <= top:
            y = replace(y, range=(0.0, 1.05))  # a flat line would stand between -1 and 1, or at 200 %
    return compose([line(one, dark=dark, step=step, markers=markers) for one in series], x, y, dark=dark, height=height)


def ecdf(samples: Sequence[tuple[Role, str, Sample]], x: Axis, *, dark: bool = False) -> Figure:
    """Share at or below a value."""
    series = [Series(role, name, *sample.ecdf()) for role, name, sample in samples if sample.n]
    return lines(series, x, Axis("share at or below", range=(0.0, 1.01), percent=True), dark=dark, step=True)


def tail(samples: Sequence[tuple[Role, str, Sample]], x: Axis, *, dark: bool = False) -> Figure:
    """Share above a value on a log axis: what the ECDF hides beyond p90."""
    series = []
    smallest = 1.0
    for role, name, sample in samples:
        if sample.n > 1:
            value, share = sample.ecdf()
            above = 1.0 - share
            smallest = min(smallest, 1.0 / sample.n)
            series.append(Series(role, name, value[above > 1e-9], above[above > 1e-9]))
    y = Axis("share above", log=True, range=(smallest * 0.8, 1.05))
    figure = lines(series, x, y, dark=dark, step=True)
    ticks = [10.0**-power for power in range(6)]
    figure["layout"]["yaxis"] |= {"tickvals": ticks, "ticktext": [f"{100 * tick:g} %" for tick in ticks]}
    return figure


def percentile_curve(
    samples: Sequence[tuple[Role, str, Sample]], y: Axis, estimator: Estimator, *, dark: bool = False
) -> Figure:
    """Value over percentile."""
    shares = np.concatenate([np.linspace(1, 99, 197), [99.5, 99.9]])
    series = [
        Series(role, name, shares, sample.percentiles(shares, estimator)) for role, name, sample in samples if sample.n
    ]
    return lines(series, Axis("percentile", range=(0.0, 100.0)), y, dark=dark)


def quantile_quantile(
    pairs: Sequence[tuple[Role, str, np.ndarray, np.ndarray]], x: Axis, y: Axis, *, dark: bool = False
) -> Figure:
    """Quantiles of the replays over those of the measured run, with the line on which both agree."""
    traces: list[dict[str, Any]] = []
    ends: list[float] = []
    for role, name, left, right in pairs:
        if len(left):
            trace = line(Series(role, name, left, right), dark=dark)
            trace["mode"] = "markers"
            trace["marker"] = {"symbol": role.symbol, "size": 5, "color": role.colour(dark)}
            traces.append(trace)
            ends += [float(left[0]), float(right[0]), float(left[-1]), float(right[-1])]
    if ends:
        equal = np.array([max(min(ends), 1e-6), max(ends)])
        traces.insert(0, reference_line("equal", equal, equal, dark=dark))
    return compose(traces, x, y, dark=dark)


def reference_line(name: str, x: np.ndarray, y: np.ndarray, *, dark: bool) -> dict[str, Any]:
    """A thin grey line to compare with."""
    colour = "#9A9AA2" if dark else "#77777F"
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": _f32(x),
        "y": _f32(y),
        "line": {"color": colour, "width": 1},
        "hoverinfo": "skip",
    }


def bars(
    categories: Sequence[str],
    series: Sequence[tuple[Role, str, Sequence[float | None] | np.ndarray]],
    x: Axis,
    y: Axis,
    *,
    dark: bool = False,
    horizontal: bool = False,
    height: int = style.HEIGHT,
) -> Figure:
    """Bars side by side, one group per category; patterns are the second cue."""
    patterns = ("", "/", ".", "x", "-", "\\", "+", "|")
    traces = []
    for index, (role, name, values) in enumerate(series):
        numbers = np.array([np.nan if v is None else v for v in values], dtype=np.float32)
        along, across = ("x", "y") if not horizontal else ("y", "x")
        traces.append(
            {
                "type": "bar",
                "name": name,
                along: list(categories),
                across: numbers,
                "orientation": "h" if horizontal else "v",
                "marker": {
                    "color": role.colour(dark),
                    "pattern": {
                        "shape": patterns[index],
                        "fillmode": "overlay",
                        "fgcolor": "rgba(255,255,255,0.6)",
                        "size": 6,
                    },
                },
            }
        )
    figure = compose(traces, x, y, dark=dark, height=height)
    figure["layout"] |= {"barmode": "group", "bargap": 0.25, "bargroupgap": 0.05}
    return figure


def stacked_shares(
    sides: Sequence[str], parts: Sequence[tuple[str, str, Sequence[float]]], x: Axis, *, dark: bool = False
) -> Figure:
    """One horizontal bar per side, cut into parts (name, colour, value per side)."""
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": list(sides),
            "x": np.asarray(values, dtype=np.float32),
            "marker": {"color": colour, "line": {"width": 0}},
        }
        for name, colour, values in parts
    ]
    figure = compose(traces, x, Axis("", categories=tuple(sides)), dark=dark, height=110 + 42 * len(sides))
    figure["layout"] |= {"barmode": "stack", "bargap": 0.35}
    return figure


def heat(
    x_names: Sequence[str],
    y_names: Sequence[str],
    z: np.ndarray,
    x: Axis,
    y: Axis,
    *,
    legend: str,
    dark: bool = False,
    limit: float | None = None,
    text: Sequence[Sequence[str]] | None = None,
    percent: bool = False,
    height: int = style.HEIGHT,
) -> Figure:
    """A heat map over named cells; with ``limit`` its colours diverge around zero, from -limit to limit."""
    scale: Sequence[tuple[float, str]]
    if limit is None:
        scale = style.SEQUENTIAL_DARK if dark else style.SEQUENTIAL
    else:
        scale = style.DIVERGING_DARK if dark else style.DIVERGING
    trace: dict[str, Any] = {
        "type": "heatmap",
        "x": list(x_names),
        "y": list(y_names),
        "z": _f32(z),
        "colorscale": [list(stop) for stop in scale],
        "colorbar": {"title": {"text": legend, "side": "right"}, "thickness": 12, "len": 0.95},
        "xgap": 1,
        "ygap": 1,
        "hoverongaps": False,
    }
    if percent:
        trace["colorbar"]["tickformat"] = "+.0%" if limit is not None else ".0%"
    if limit is not None:
        trace |= {"zmin": -limit, "zmax": limit, "zmid": 0}
    if text is not None:
        trace |= {"text": [list(row) for row in text], "texttemplate": "%{text}", "textfont": {"size": 11}}
    axis_x = Axis(x.title, categories=tuple(x_names))
    axis_y = Axis(y.title, categories=tuple(y_names))
    figure = compose([trace], axis_x, axis_y, dark=dark, height=height)
    figure["layout"]["xaxis"]["showgrid"] = figure["layout"]["yaxis"]["showgrid"] = False
    return figure


def handles(x: Sequence[str], y: Sequence[str], keys: Sequence[str], words: Sequence[str]) -> dict[str, Any]:
    """Invisible marks over the cells of a heat map, as a heat map itself cannot be clicked; ``keys`` come back."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "",
        "showlegend": False,
        "x": list(x),
        "y": list(y),
        "customdata": list(keys),
        "text": list(words),
        "hovertemplate": "%{x}, %{y}<br>%{text}<extra></extra>",
        "marker": {"symbol": "square", "size": 26, "color": "rgba(0,0,0,0)"},
        "selected": {"marker": {"color": "rgba(0,0,0,0.35)"}},
        "unselected": {"marker": {"opacity": 0}},
    }


def gantt(
    spans: Sequence[tuple[Role, str, np.ndarray, np.ndarray, np.ndarray]],
    x: Axis,
    y: Axis,
    *,
    dark: bool = False,
    height: int = 420,
) -> Figure:
    """Spans (role, name, lane, start, end): one row per lane, in which each side has its own height."""
    traces = []
    offsets = np.linspace(0.22, -0.22, len(spans)) if len(spans) > 1 else np.zeros(len(spans))
    for (role, name, lane, start, end), offset in zip(spans, offsets, strict=True):
        n = len(lane)
        xs = np.full(3 * n, np.nan, dtype=np.float32)
        xs[0::3], xs[1::3] = start, end
        ys = np.repeat(lane.astype(np.float32) + np.float32(offset), 3)
        ys[2::3] = np.nan
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": xs,
                "y": ys,
                "line": {"color": role.colour(dark), "width": 7 if len(spans) < 3 else 4},
                "connectgaps": False,
            }
        )
    return compose(traces, x, y, dark=dark, height=height)


def cloud(
    points: Sequence[tuple[Role, str, np.ndarray, np.ndarray, np.ndarray]],
    curves: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    dark: bool = False,
    height: int = style.HEIGHT,
) -> Figure:
    """Binned points (role, name, x, y, count), larger where a bin holds more, under the curves of a model."""
    traces: list[dict[str, Any]] = []
    for role, name, px, py, counts in points:
        size = 4 + 10 * np.sqrt(np.asarray(counts, dtype=np.float64) / max(float(np.max(counts, initial=1)), 1.0))
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": _f32(px),
                "y": _f32(py),
                "marker": {"color": role.colour(dark), "symbol": role.symbol, "size": _f32(size), "opacity": 0.55},
                "customdata": _f32(counts),
                "hovertemplate": "%{x:.4~g}, %{y:.4~g}<br>%{customdata:d} in this bin",
            }
        )
    traces += [line(curve, dark=dark) for curve in curves]
    return compose(traces, x, y, dark=dark, height=height)


def gap_scale(limit: float, title: str, dark: bool) -> dict[str, Any]:
    """Layout of panels that share one colour scale of signed shares, from ``-limit`` to ``limit``."""
    return {
        "showlegend": False,
        "coloraxis": {
            "colorscale": [list(stop) for stop in (style.DIVERGING_DARK if dark else style.DIVERGING)],
            "cmin": -limit,
            "cmax": limit,
            "cmid": 0,
            "colorbar": {"title": {"text": title, "side": "right"}, "thickness": 12, "tickformat": "+.0%"},
        },
    }


def small_multiples(
    panels: Sequence[tuple[str, Figure]], *, columns: int = 3, height: int = 230, gap: float = 0.07
) -> Figure:
    """Several charts in one figure with one legend: at most 3 x 4 panels, titles above each.

    ``gap`` is the share of the width between two columns: more where an axis has long names.
    """
    rows = -(-len(panels) // columns)
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {}
    notes: list[dict[str, Any]] = []
    named: set[str] = set()
    # Between rows: the ticks of one row, the title of its axis where it has one, and the title of the next panel.
    named_axes = any(figure["layout"]["xaxis"]["title"]["text"] for _, figure in panels)
    whole = height * rows + HEAD
    gap_x, gap_y, head = gap, (ROW_GAP if named_axes else BARE_ROW_GAP) / whole, HEAD / whole
    wide, tall = (1 - gap_x * (columns - 1)) / columns, (1 - head - gap_y * (rows - 1)) / max(rows, 1)
    for index, (title, figure) in enumerate(panels):
        row, column = divmod(index, columns)
        suffix = "" if index == 0 else str(index + 1)
        left, top = column * (wide + gap_x), 1 - head - row * (tall + gap_y)
        for trace in figure["data"]:
            shown = trace.get("name", "") not in named
            named.add(trace.get("name", ""))
            data.append(
                {
                    **trace,
                    "xaxis": f"x{suffix}",
                    "yaxis": f"y{suffix}",
                    "showlegend": shown,
                    "legendgroup": trace["name"],
                }
            )
        layout[f"xaxis{suffix}"] = {
            **figure["layout"]["xaxis"],
            "domain": [left, min(left + wide, 1)],
            "anchor": f"y{suffix}",
        }
        layout[f"yaxis{suffix}"] = {
            **figure["layout"]["yaxis"],
            "domain": [max(top - tall, 0), top],
            "anchor": f"x{suffix}",
        }
        notes.append(
            {
                "text": title,
                "x": left,
                "y": top,
                "xref": "paper",
                "yref": "paper",
                "xanchor": "left",
                "yanchor": "bottom",
                "showarrow": False,
                "font": {"size": 13},
            }
        )
    layout |= {
        "annotations": notes,
        "height": height * rows + 60,
        "margin": {"l": 8, "r": 12, "t": 34, "b": 8},
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
        "showlegend": True,
        "hovermode": "closest",
    }
    return {"data": data, "layout": layout}


def blank(figure: Figure) -> bool:
    """Whether nothing of a figure can be drawn: it has no trace, or none of its traces has a value."""
    return not any(_drawn(trace) for trace in figure["data"])


def _drawn(trace: dict[str, Any]) -> bool:
    """Whether a trace has a value: cells of its own, else a point of which both coordinates are known."""
    held = [trace["z"]] if trace.get("z") is not None else [trace[name] for name in "xy" if trace.get(name) is not None]
    known = [_known(values) for values in held]
    few = min(map(len, known), default=0)
    return bool(np.logical_and.reduce([one[:few] for one in known]).any()) if known else True


def _known(values: Any) -> np.ndarray:
    """Which values are there: a gap is None or no number."""
    array = np.asarray(values).ravel()
    if array.dtype.kind == "f":
        return ~np.isnan(array)
    if array.dtype.kind != "O":
        return np.ones(len(array), dtype=bool)
    return np.array([value is not None and value == value for value in array.tolist()], dtype=bool)


def one_axis(figure: Figure, title: str, span: tuple[float, float] | None = None) -> Figure:
    """Panels above each other as one: they zoom together, and only the last says what the x axis is."""
    layout = figure["layout"]
    names = sorted((name for name in layout if name.startswith("xaxis")), key=lambda name: int(name[5:] or 1))
    for name in names:
        layout[name] |= {"range": list(span)} if span else {}
        layout[name] |= {"matches": "x"} if name != names[0] else {}
        layout[name] |= {"title": {"text": title if name == names[-1] else ""}, "showticklabels": name == names[-1]}
    return figure


def _f32(values: np.ndarray | Sequence[float]) -> np.ndarray:
    return np.asarray(values, dtype=np.float32)
