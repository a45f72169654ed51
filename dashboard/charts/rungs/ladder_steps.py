"""One number from the prediction, step by step, to the measurement."""

from __future__ import annotations

import textwrap
from typing import Any

import pyarrow as pa

from dashboard.charts import figures, style
from dashboard.charts.answer import Answer, Column
from dashboard.charts.figures import Axis, Figure
from dashboard.charts.style import ROLES
from dashboard.compare.climb import TOP, Climb, Gap, Step
from dashboard.compare.noise import Noise, Place, words_of
from dashboard.compare.numbers import Key
from dashboard.metrics import METRICS
from dashboard.queries.totals import totals
from dashboard.render.ladder import cell, name_of
from dashboard.render.tables import shown_unit
from dashboard.samples import sample
from dashboard.store import Store

DEFINITION = (
    "difference = value at the upper rung minus value at the lower one, from the prediction towards the measurement; "
    "the differences of a number sum to measured minus prediction. A step is inside the noise where a replay that is "
    "off by this step alone would lie where the measured side may lie when nothing changes."
)
WRAP = 17
HATCHED = {"inside": "/", "open": "."}
"""Bars of steps that are not shown to be more than noise."""


def waterfall(store: Store, climb: Climb, key: Key, dark: bool) -> tuple[Answer, Figure]:
    """One number from the prediction, step by step, to the measurement, over the noise of the measured side."""
    gap = climb.gaps[key]
    return _steps(store, climb, key, gap), _fall(climb, key, gap, dark)


def _steps(store: Store, climb: Climb, key: Key, gap: Gap) -> Answer:
    scale = _scale(key)
    rows: list[dict[str, Any]] = []
    for step in climb.steps:
        change = step.changes[key]
        rows.append(
            {
                "step": f"{change.since} → {step.right}",
                "layer": step.layer,
                "left": _times(change.left.value, scale),
                "right": _times(change.right.value, scale),
                "difference": _times(change.difference, scale),
                "relative": _times(change.relative, 100),
                "state": _against(change.difference, change.where, gap.noise) or change.reason,
                "left_n": change.left.n,
                "right_n": change.right.n,
                "left_run": climb.runs[change.since],
                "right_run": step.runs[1],
            }
        )
    rows.append(
        {
            "step": f"0 → {TOP}",
            "layer": "whole gap",
            "left": _times(gap.prediction.value, scale),
            "right": _times(gap.measured.value, scale),
            "difference": _times(gap.gap, scale),
            "relative": _times(over(gap.gap, gap.measured.value), 100),
            "state": _against(gap.gap, gap.where, gap.noise) or gap.why,
            "left_n": gap.prediction.n,
            "right_n": gap.measured.n,
            "left_run": climb.base,
            "right_run": climb.measured,
        }
    )
    unit = shown_unit(key.unit)
    columns = [
        Column("step", "Rungs", pinned=True),
        Column("layer", "Layer", pinned=True),
        Column("left", f"Lower ({unit})", "%.6g"),
        Column("right", f"Upper ({unit})", "%.6g"),
        Column("difference", f"Difference ({'pp' if key.unit == 'share' else unit})", "%+.4g"),
        Column("relative", "Of the measured value (%)", "%+.2f"),
        Column("state", "Noise"),
        Column("left_n", "n lower", "%d"),
        Column("right_n", "n upper", "%d"),
        Column("left_run", "Run below"),
        Column("right_run", "Run above"),
    ]
    floats = dict.fromkeys(("left", "right", "difference", "relative"), pa.float64())
    table = pa.table({c.name: pa.array([row[c.name] for row in rows], floats.get(c.name)) for c in columns})
    n = {climb.measured: gap.measured.n, climb.base: gap.prediction.n}
    return Answer(table, _sql(store, climb, key), columns, n, f"{key.label}: {key.definition}. {DEFINITION}")


def _fall(climb: Climb, key: Key, gap: Gap, dark: bool) -> Figure:
    scale, unit = _scale(key), shown_unit(key.unit)
    title = f"{name_of(key)}, {unit}" if unit != "count" else name_of(key)
    if gap.gap is None or gap.prediction.value is None or gap.measured.value is None:
        return figures.compose([], Axis(""), Axis(title), dark=dark)
    names = ["prediction", *(label(step) for step in climb.steps), "measured"]
    levels = [gap.prediction.value * scale, gap.measured.value * scale]
    traces: list[dict[str, Any]] = []
    tints = style.DIVERGING_DARK if dark else style.DIVERGING
    for word, colour, up in (("raises it", tints[-1][1], True), ("lowers it", tints[0][1], False)):
        own = [
            (name, step, change)
            for name, step in zip(names[1:-1], climb.steps, strict=True)
            if (change := step.changes[key]).difference is not None and (change.difference >= 0) is up
        ]
        if not own:
            continue
        lower = [change.left.value * scale for *_, change in own if change.left.value is not None]
        differences = [change.difference * scale for *_, change in own if change.difference is not None]
        levels += [low + difference for low, difference in zip(lower, differences, strict=True)]
        traces.append(
            {
                "type": "bar",
                "name": word,
                "showlegend": any(differences),
                "x": [name for name, *_ in own],
                "base": lower,
                "y": differences,
                "text": [cell(change, key) for *_, change in own],
                "textposition": "outside",
                "cliponaxis": False,
                "customdata": [step.layer for _, step, _ in own],
                "hovertemplate": f"%{{customdata}}<br>%{{text}} {'pp' if key.unit == 'share' else unit}<extra></extra>",
                "marker": {
                    "color": colour,
                    "opacity": [0.45 if change.where in ("inside", "open") else 1.0 for *_, change in own],
                    "pattern": {"shape": [HATCHED.get(change.where, "") for *_, change in own], "fillmode": "overlay"},
                },
            }
        )
    for name, role, value in (
        ("prediction", ROLES[1], gap.prediction.value),
        ("measured", ROLES[0], gap.measured.value),
    ):
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [name],
                "y": [value * scale],
                "marker": {"symbol": role.symbol, "size": 13, "color": role.colour(dark)},
                "hovertemplate": f"{name}: %{{y:.6~g}} {unit}<extra></extra>",
            }
        )
    if gap.noise:
        levels += [gap.noise.low * scale, gap.noise.high * scale]
    figure = figures.compose(traces, Axis("", categories=tuple(names)), Axis(title), dark=dark, height=360)
    room = 0.12 * (max(levels) - min(levels)) or 0.05 * abs(max(levels)) or 1.0
    figure["layout"]["yaxis"]["range"] = [min(levels) - room, max(levels) + room]
    figure["layout"] |= {"barmode": "overlay", "bargap": 0.4, "showlegend": True}
    figure["layout"]["shapes"] = _measured(gap.measured.value * scale, gap.noise, scale)
    return figure


def _measured(value: float, noise: Noise | None, scale: float) -> list[dict[str, Any]]:
    """A line at the measured value, over the band of its noise and, lighter, what redrawing adds to it."""
    wide: dict[str, Any] = {"xref": "paper", "x0": 0, "x1": 1, "layer": "below"}
    dots = {"width": 1, "dash": "dot", "color": "#88888f"}
    shapes = [wide | {"type": "line", "y0": value, "y1": value, "line": dots}]
    bands = [noise.interval, *([noise.wider] if noise.wider else [])] if noise else []
    for (low, high), fill in zip(bands, style.NOISE, strict=False):
        band = {"y0": low * scale, "y1": high * scale, "fillcolor": fill}
        shapes.append(wide | band | {"type": "rect", "line": {"width": 0}})
    return shapes


def label(step: Step) -> str:
    """A step on an axis: what it isolates over several lines, and its ends."""
    words = " | ".join(step.layers) if step.missing else step.layer
    return "<br>".join([*textwrap.wrap(words, WRAP), f"{step.left} → {step.right}"])


def _scale(key: Key) -> float:
    return 100.0 if key.unit == "share" else 1.0


def _times(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def over(value: float | None, whole: float | None) -> float | None:
    """A share; None where it is unknown or of nothing."""
    return None if value is None or not whole else value / whole


def _against(difference: float | None, where: Place, spread: Noise | None) -> str:
    if difference is None:
        return ""
    return words_of(where, spread) if difference else "no difference"


def _sql(store: Store, climb: Climb, key: Key) -> str:
    """The query that each rung's value was read off."""
    texts = []
    for rung, run_id in climb.runs.items():
        population = climb.population.for_side(climb.base if rung == TOP else climb.measured)
        if key.metric in METRICS:
            text = sample(store, run_id, METRICS[key.metric], population).sql
        else:
            text = totals(store, run_id, population).sql
        texts.append(f"-- rung {rung}\n{text}")
    return "\n\n".join(texts)
