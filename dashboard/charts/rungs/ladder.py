"""A ladder's rungs, and all numbers by step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from dashboard.charts import figures
from dashboard.charts.answer import Answer, Column
from dashboard.charts.figures import Axis, Figure
from dashboard.charts.rungs.ladder_steps import DEFINITION, label, over
from dashboard.compare.climb import Climb, Gap
from dashboard.render.ladder import cell, mark_of, name_of, signed
from dashboard.render.tables import shown_unit
from dashboard.store import Store
from engine.ladder.rungs import RUNGS


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


def heat(climb: Climb, dark: bool) -> tuple[Answer, Figure]:
    """Every number by step, as a share of its measured value."""
    keys = list(climb.gaps)
    steps = [label(step) for step in climb.steps]
    names = [*steps, "whole gap"]
    z = np.full((len(keys), len(names)), np.nan)
    text = [["–"] * len(names) for _ in keys]
    for row, key in enumerate(keys):
        gap = climb.gaps[key]
        cells = [
            (step.changes[key].relative, step.changes[key].difference, step.changes[key].where) for step in climb.steps
        ]
        cells.append((over(gap.gap, gap.measured.value), gap.gap, gap.where))
        for column, (relative, difference, where) in enumerate(cells):
            if difference is None:
                continue
            mark = mark_of(difference, where)
            if relative is None:
                text[row][column] = signed(difference, key.unit) + mark
            else:
                z[row, column] = relative
                text[row][column] = f"{relative:+.1%}{mark}"
    labels = [name_of(key) + " (few)" * climb.gaps[key].weak for key in keys]
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
    columns += [Column("predicted_n", "n predicted", "%d"), Column("measured_n", "n measured", "%d")]
    table = pa.table(
        {
            "number": labels,
            "unit": [shown_unit(key.unit) for key in keys],
            **{f"s{at}": [cell(climb.steps[at].changes[key], key) for key in keys] for at in range(len(climb.steps))},
            f"s{len(steps)}": [signed(gap.gap, key.unit) for key, gap in climb.gaps.items()],
            "predicted_n": [gap.prediction.n for gap in climb.gaps.values()],
            "measured_n": [gap.measured.n for gap in climb.gaps.values()],
            "largest": [_largest(gap) for gap in climb.gaps.values()],
        }
    )
    return Answer(table, "", columns, definition=DEFINITION), figure


def _largest(gap: Gap) -> str:
    """The layer that holds most of a gap and its share, or why none is said to."""
    if gap.step is None:
        return gap.why
    return "none: the noise may be all of it" if gap.explained else f"{gap.step.layer}, {gap.share:.0%}"
