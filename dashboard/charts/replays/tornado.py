"""Sensitivity: bars of what a step of each knob does to a number, against the noise and the gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from dashboard.charts import figures, style
from dashboard.charts.answer import Answer, Column
from dashboard.charts.figures import Axis, Figure
from dashboard.compare.noise import Noise
from dashboard.metrics import SWEEP_NUMBERS
from dashboard.sweeps.effects import Effect, by_knob
from dashboard.sweeps.numbers import Scope, shown
from dashboard.sweeps.steps import RULE

BEYOND = 3.0
"""A change that is so many times the next one ends at the edge of the axis, with its figure."""
BARS = 16
"""Knobs that are drawn; the table has all."""
WAYS = {
    "down": ("one step down", style.PARTS[2], "/"),
    "up": ("one step up", style.PARTS[0], ""),
    "other": ("turned", style.PARTS[1], "."),
}


def unit_of(scope: Scope, name: str) -> str:
    """The unit of a change of the number."""
    unit = scope.key(name).unit
    return "percentage points" if unit == "share" else unit


def bars(
    effects: Sequence[Effect], scope: Scope, name: str, spread: Noise | None, gap: float | None, dark: bool
) -> Figure:
    """One row per knob, the largest on top; grey: the noise of the measured run; line: the change that closes the gap.

    ``spread`` is the noise of changes of the measured number, ``gap`` base less measured, in its unit.
    """
    unit = scope.key(name).unit
    rows = [knob for knob in by_knob(effects) if any(one.change is not None for one in knob)][:BARS]
    names = [knob[0].step.knob for knob in rows]
    traces: list[dict[str, Any]] = []
    for way, (words, colours, pattern) in WAYS.items():
        chosen = [one for knob in rows for one in knob if one.step.way == way and one.change is not None]
        if chosen:
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": words,
                    "y": [one.step.knob for one in chosen],
                    "x": [shown(one.change, unit) for one in chosen],
                    "customdata": [one.run_id for one in chosen],
                    "text": [f"{one.step.words}: {one.gap or 'gap unknown'}, {one.noise}" for one in chosen],
                    "textposition": "none",
                    "hovertemplate": "%{text}<br>%{x:+.4~g}<extra></extra>",
                    "marker": {
                        "color": style.pick(colours, dark),
                        "pattern": {
                            "shape": pattern,
                            "fillmode": "overlay",
                            "fgcolor": "rgba(255,255,255,0.6)",
                            "size": 6,
                        },
                    },
                }
            )
    x = Axis(f"change of {SWEEP_NUMBERS[name]}, {unit_of(scope, name)}")
    axis = Axis("", categories=tuple(names), reverse=True)
    figure = figures.compose(traces, x, axis, dark=dark, height=max(180, 110 + 34 * len(names)))
    figure["layout"] |= {
        "barmode": "group",
        "bargap": 0.3,
        "showlegend": True,
        "shapes": _behind(spread, gap, unit, dark),
    }
    figure["layout"]["xaxis"] |= {"zeroline": True, "zerolinewidth": 1}
    marks = [_mark("closes the gap", -(shown(gap, unit) or 0.0))] if traces and gap else []
    reach = reach_of([shown(one.change, unit) or 0.0 for knob in rows for one in knob])
    if reach is not None:
        figure["layout"]["xaxis"]["range"] = [-1.04 * reach, 1.04 * reach]
        marks += [
            _beyond(one, reach, unit) for knob in rows for one in knob if abs(shown(one.change, unit) or 0.0) > reach
        ]
    figure["layout"]["annotations"] = marks
    figure["layout"]["margin"]["t"] = 56
    figure["layout"]["legend"] |= {"y": 1 + 26 / max(34 * len(names), 80)}
    return figure


def reach_of(changes: Sequence[float]) -> float | None:
    """Where the axis ends, where one change would make lines of all others; None where all fit."""
    sizes = sorted((abs(change) for change in changes), reverse=True)
    if len(sizes) < 3 or not sizes[1] or sizes[0] <= BEYOND * sizes[1]:
        return None
    return BEYOND / 2 * sizes[1]


def _mark(words: str, at: float) -> dict[str, Any]:
    place = {"x": at, "y": 1, "xref": "x", "yref": "paper", "yanchor": "bottom"}
    return {"text": words, **place, "showarrow": False, "font": {"size": 11}}


def _beyond(one: Effect, reach: float, unit: str) -> dict[str, Any]:
    """The change of a bar that goes beyond the axis, as a figure at its end."""
    change = shown(one.change, unit) or 0.0
    side = {"x": reach, "xanchor": "right"} if change > 0 else {"x": -reach, "xanchor": "left"}
    text = f"{change:+,.4g} {'▶' if change > 0 else '◀'}"
    return {"text": text, **side, "y": one.step.knob, "yshift": 12, "showarrow": False, "font": {"size": 11}}


def _behind(spread: Noise | None, gap: float | None, unit: str, dark: bool) -> list[dict[str, Any]]:
    shapes: list[dict[str, Any]] = []
    paper = {"yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    bands = [spread.interval, *([spread.wider] if spread.wider else [])] if spread else []
    for (low, high), fill in zip(bands, style.NOISE, strict=False):
        drawn = {"fillcolor": fill, "line": {"width": 0}}
        shapes.append({"type": "rect", "x0": shown(low, unit), "x1": shown(high, unit), **paper, **drawn})
    if gap:
        at = -(shown(gap, unit) or 0.0)
        colour = style.pick(("#0072B2", "#56B4E9"), dark)
        shapes.append(
            {"type": "line", "x0": at, "x1": at, **paper, "line": {"color": colour, "width": 1.5, "dash": "dot"}}
        )
    return shapes


def table(effects: Sequence[Effect], skipped: Mapping[str, str], scope: Scope, name: str) -> Answer:
    """One row per step, the knob that moves the number most first; then the knobs without a step, and why."""
    unit = scope.key(name).unit
    rows = [
        {
            "knob": one.step.knob,
            "way": WAYS[one.step.way][0],
            "step": one.step.words,
            "value": shown(one.value, unit),
            "change": shown(one.change, unit),
            "gap": one.gap or "not known",
            "noise": one.noise if one.run_id else "not played yet",
            "run": one.run_id,
            "why": "",
        }
        for knob in by_knob(effects)
        for one in knob
    ]
    empty = {"way": "", "step": "", "value": None, "change": None, "gap": "", "noise": "", "run": None}
    rows += [{"knob": knob, **empty, "why": why} for knob, why in skipped.items()]
    said = unit_of(scope, name)
    types = {"value": pa.float64(), "change": pa.float64()}
    names = ("knob", "way", "step", "value", "change", "gap", "noise", "run", "why")
    return Answer(
        pa.table({one: pa.array([row[one] for row in rows], types.get(one, pa.string())) for one in names}),
        "",
        [
            Column("knob", "Knob", pinned=True),
            Column("step", "Step"),
            Column("way", "Way"),
            Column("change", f"Change ({said})", "%+.4g"),
            Column("value", f"Value ({'%' if unit == 'share' else unit})", "%.5g"),
            Column("gap", "The gap"),
            Column("noise", "Against the noise"),
            *([Column("why", "No step, because", width=300)] if skipped else []),
            Column("run", "Run", width=280),
        ],
        definition=f"{scope.key(name).definition}. {RULE} One knob at a time: what two do together is not in it.",
    )
