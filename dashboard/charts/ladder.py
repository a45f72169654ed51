"""Charts of a ladder: its rungs, the steps of one number from prediction to measurement, all numbers by step."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from dashboard.charts import figures, style
from dashboard.charts.answer import Answer, Column
from dashboard.charts.figures import Axis, Figure
from dashboard.charts.style import ROLES
from dashboard.compare.ladder import TOP, Climb, Gap, Step
from dashboard.compare.numbers import Key
from dashboard.metrics import METRICS
from dashboard.queries.totals import totals
from dashboard.render import shown_unit
from dashboard.render_ladder import cell, name_of, signed
from dashboard.samples import sample
from dashboard.store import Store
from engine.ladder.rungs import RUNGS

NUMBERS = (pa.field("prediction", pa.float64()), pa.field("difference", pa.float64()))
DEFINITION = (
    "difference = value at the upper rung minus value at the lower one, from the prediction towards the measurement; "
    "the differences of a number sum to measured minus prediction. A step is inside the noise where a replay that is "
    "off by this step alone would lie where the measured side may lie when nothing changes."
)
WRAP = 17


def rungs(store: Store, climb: Climb, why: Mapping[int, str]) -> Answer:
    """Every rung with its run, or why there is none."""
    rows = [
        {
            "rung": rung.number,
            "name": rung.name,
            "isolates": rung.isolates,
            "run": run_id,
            "why": None if run_id else why.get(rung.number) or "not built yet",
            "taken": rung.taken,
            "left": "; ".join((store.bundle(run_id).lineage.get("ladder") or {}).get("left") or ()) if run_id else None,
            "requests": store.bundle(run_id).rows("requests") if run_id else None,
        }
        for rung in RUNGS
        for run_id in (climb.runs.get(rung.number),)
    ]
    columns = [
        Column("rung", "Rung", "%d", pinned=True, width=50),
        Column("name", "Name", pinned=True, width=140),
        Column("isolates", "The step to it isolates", width=190),
        Column("run", "Run", width=230),
        *([Column("why", "Why there is none", width=320)] if climb.missing else []),
        Column("taken", "Taken from the measurement", width=300),
        Column("left", "What of it could not be taken", width=260),
        Column("requests", "Requests", "%d", width=75),
    ]
    return Answer(pa.table({column.name: [row[column.name] for row in rows] for column in columns}), "", columns)


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
                "state": _inside(change.inside, change.difference) or change.reason,
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
            "relative": _times(_over(gap.gap, gap.measured.value), 100),
            "state": _inside(gap.inside, gap.gap) or gap.why,
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
    names = ["prediction", *(_label(step) for step in climb.steps), "measured"]
    levels = [gap.prediction.value * scale, gap.measured.value * scale]
    traces: list[dict[str, Any]] = []
    colours = (
        (style.DIVERGING_DARK if dark else style.DIVERGING)[0][1],
        (style.DIVERGING_DARK if dark else style.DIVERGING)[-1][1],
    )
    for word, colour, up in (("raises it", colours[1], True), ("lowers it", colours[0], False)):
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
                    "opacity": [0.45 if change.inside else 1.0 for *_, change in own],
                    "pattern": {"shape": ["/" if change.inside else "" for *_, change in own], "fillmode": "overlay"},
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
    figure["layout"] |= {"barmode": "overlay", "bargap": 0.4, "showlegend": True, "shapes": []}
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "line": {"width": 1, "dash": "dot", "color": "#88888f"}}
    top = gap.measured.value * scale
    figure["layout"]["shapes"].append(line | {"y0": top, "y1": top, "layer": "below"})
    if gap.noise:
        figure["layout"]["shapes"].append(
            {
                "type": "rect",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": gap.noise.low * scale,
                "y1": gap.noise.high * scale,
                "fillcolor": "rgba(128,128,136,0.22)",
                "line": {"width": 0},
                "layer": "below",
            }
        )
    return figure


def heat(climb: Climb, dark: bool) -> tuple[Answer, Figure]:
    """Every number by step, as a share of its measured value."""
    keys = list(climb.gaps)
    steps = [_label(step) for step in climb.steps]
    names = [*steps, "whole gap"]
    z = np.full((len(keys), len(names)), np.nan)
    text = [["–"] * len(names) for _ in keys]
    for row, key in enumerate(keys):
        gap = climb.gaps[key]
        cells = [
            (step.changes[key].relative, step.changes[key].difference, step.changes[key].inside) for step in climb.steps
        ]
        cells.append((_over(gap.gap, gap.measured.value), gap.gap, gap.inside))
        for column, (relative, difference, inside) in enumerate(cells):
            if difference is None:
                continue
            mark = " ~" if inside and difference else ""
            if relative is None:
                text[row][column] = signed(difference, key.unit) + mark
            else:
                z[row, column] = relative
                text[row][column] = f"{relative:+.1%}{mark}"
    labels = [name_of(key) for key in keys]
    limit = min(max(float(np.nanmax(np.abs(z), initial=0.0)), 0.01), 0.5)
    figure = figures.heat(
        names,
        labels[::-1],
        z[::-1],
        Axis(""),
        Axis(""),
        legend="of the measured value",
        dark=dark,
        limit=limit,
        text=text[::-1],
        percent=True,
        height=110 + 24 * len(keys),
    )
    figure["layout"]["xaxis"]["side"] = "top"
    figure["layout"]["margin"]["t"] = 8
    spots = [(name, label, str(key)) for label, key in zip(labels, keys, strict=True) for name in names]
    xs, ys, chosen = (list(part) for part in zip(*spots, strict=True))
    figure["data"].append(figures.handles(xs, ys, chosen, [cell_ for row in text for cell_ in row]))
    columns = [Column("number", "Number", pinned=True), Column("unit", "Unit")]
    columns += [Column(f"s{at}", name.replace("<br>", " ")) for at, name in enumerate(names)]
    columns.append(Column("largest", "Largest part"))
    table = pa.table(
        {
            "number": labels,
            "unit": [shown_unit(key.unit) for key in keys],
            **{f"s{at}": [cell(climb.steps[at].changes[key], key) for key in keys] for at in range(len(climb.steps))},
            f"s{len(steps)}": [signed(gap.gap, key.unit) for key, gap in climb.gaps.items()],
            "largest": [f"{gap.step.layer}, {gap.share:.0%}" if gap.step else gap.why for gap in climb.gaps.values()],
        }
    )
    return Answer(table, "", columns, definition=DEFINITION), figure


def _label(step: Step) -> str:
    """A step on an axis: what it isolates over several lines, and its ends."""
    words = " | ".join(step.layers) if step.missing else step.layer
    return "<br>".join([*textwrap.wrap(words, WRAP), f"{step.left} → {step.right}"])


def _scale(key: Key) -> float:
    return 100.0 if key.unit == "share" else 1.0


def _times(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def _over(value: float | None, whole: float | None) -> float | None:
    return None if value is None or not whole else value / whole


def _inside(inside: bool | None, difference: float | None) -> str:
    if difference is None:
        return ""
    if not difference:
        return "no difference"
    return "noise unknown" if inside is None else "~ inside the noise" if inside else "outside the noise"


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
