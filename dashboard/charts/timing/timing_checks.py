"""How well a timing predicts: errors on passes that its fit had not seen, and whether uneven lengths cost time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dashboard.charts import figures, style
from dashboard.charts.answer import Answer, Column
from dashboard.charts.figures import Axis, Figure, Series
from dashboard.charts.passes.passes import WORDS
from dashboard.charts.style import Role
from dashboard.frame import Side, escape
from dashboard.queries import passes
from dashboard.store import Store
from dashboard.timing_sources import Asked
from engine.errors import GapscopeError
from engine.timing import FitSource
from engine.timing.skew import Skew, skew_test


def holdout(replay: Side, dark: bool) -> tuple[Answer, tuple[Answer, Figure], str] | None:
    """Errors on passes that the fit had not seen, by class, and by cell as a map; None where none were held out."""
    timing = replay.bundle.lineage.get("timing") or {}
    model = timing.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("holdout"), dict):
        return None
    composition = timing.get("composition") or model["composition"]
    found = model["holdout"][composition]
    by_class = [{"class": name, **error} for name, error in (*found["by_class"].items(), ("all", found["all"]))]
    of = ", ".join(model["holdout"]["scored_on"])
    n: dict[str, int | None] = {replay.run_id: found["all"]["passes"]}
    definition = (
        f"{model['holdout']['folds']} folds; each pass was priced by a fit that had not seen it, on passes of {of}. "
        "Stored with the model in the record of the replay."
    )
    cells = found["cells"]
    figure = _holdout_map(cells, dark)
    words = f"Mixed passes are composed as {composition}. Scored on {of}."
    left = Answer(
        _error_table(by_class, ("class",)), "", _error_columns(Column("class", "Class", pinned=True)), n, definition
    )
    right = Answer(
        _error_table(cells, ("class", "requests", "tokens")),
        "",
        _error_columns(
            Column("class", "Class", pinned=True),
            Column("requests", "Requests", "%d"),
            Column("tokens", "Tokens, about", "%d"),
        ),
        n,
        definition + " Cells: decode requests and decode KV of decode-only passes, else prompts and new tokens.",
    )
    return left, (right, figure), words


def no_holdout(replay: Side, name: str) -> str:
    """Why there are no hold-out errors of a replay's timing, as a sentence; ``name`` says which replay."""
    lineage = replay.bundle.lineage
    runs = dict.fromkeys(str(source.get("run_id")) for source in lineage.get("fitted_on") or ())
    if (lineage.get("timing") or {}).get("kind") == "table":
        return f"Hold-out: the timing of {name} is a published table, whose passes are not here to be held out."
    if not runs:
        return f"Hold-out: the timing of {name} was fitted on no passes, so none were held out."
    return f"Hold-out: the timing of {name} rests on passes of {', '.join(runs)}, and none of them were held out."


def _error_table(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> pa.Table:
    measures = ("passes", "median_ape", "mape", "wape", "total")
    return pa.table({name: [row.get(name) for row in rows] for name in (*names, *measures)})


def _error_columns(*first: Column) -> list[Column]:
    return [
        *first,
        Column("passes", "Passes", "%d"),
        Column("median_ape", "Median error", "percent"),
        Column("mape", "Mean error (MAPE)", "percent"),
        Column("wape", "Weighted by time (WAPE)", "percent"),
        Column("total", "Error of the total", "percent"),
    ]


def _holdout_map(cells: Sequence[Mapping[str, Any]], dark: bool) -> Figure:
    """A map per class: how far the total time of a cell is off, blue shorter and orange longer than measured."""
    limit = min(max((abs(cell["total"]) for cell in cells), default=0.1), 0.5) or 0.1
    panels = []
    for name in passes.CLASS_AXES:
        held = [cell for cell in cells if cell["class"] == name]
        if not held:
            continue
        xs, ys = (sorted({int(cell[axis]) for cell in held}) for axis in ("tokens", "requests"))
        z = np.full((len(ys), len(xs)), np.nan)
        text = [["" for _ in xs] for _ in ys]
        for cell in held:
            at = ys.index(int(cell["requests"])), xs.index(int(cell["tokens"]))
            z[at] = cell["total"]
            text[at[0]][at[1]] = str(cell["passes"])
        decode = name == "decode_only"
        x = Axis("decode KV, about (tokens)" if decode else "new tokens, about")
        y = Axis("decode requests" if decode else "prompts")
        figure = figures.heat(
            [f"{one:,}" for one in xs], [str(one) for one in ys], z, x, y,
            legend="", dark=dark, limit=limit, text=text, percent=True,
        )  # fmt: skip
        trace = figure["data"][0]
        for key in ("colorbar", "colorscale", "zmin", "zmax", "zmid"):
            trace.pop(key, None)
        trace |= {"coloraxis": "coloraxis", "name": WORDS[name]}
        panels.append((WORDS[name], figure))
    if not panels:
        return {"data": [], "layout": {}}
    whole = figures.small_multiples(panels, columns=len(panels), height=300, gap=0.11)
    whole["layout"] |= figures.gap_scale(limit, "error of the total", dark)
    return whole


def skew(
    store: Store, run: Side, phases: Collection[str], asked: Asked, role: Role, dark: bool, doubt: str = ""
) -> tuple[Answer, Figure, str]:
    """Whether what a source leaves unexplained of decode passes grows with the unevenness of their KV lengths.

    ``doubt`` says why the source cannot tell; then nothing is claimed.
    """
    assert asked.timing is not None
    timing, own = asked.timing, tuple(sorted(phases))

    def test() -> Skew | str:
        try:
            return skew_test(FitSource(run.bundle, own), timing)
        except GapscopeError as error:
            return str(error)

    found: Skew | str = doubt or store.remember(("skew", run.run_id, asked.key, own), test)
    definition = (
        "alpha: the share of what a pass would cost more if each of its requests were a standard deviation longer; "
        "at 0 the sum of the lengths says all, at 1 a pass costs as if all requests were that long. The interval is "
        "over stretches of time; levels in time and errors by batch size are taken out first."
    )
    nothing: Figure = {"data": [], "layout": {}}
    if isinstance(found, str):
        return Answer(pa.table({}), "", (), {run.run_id: None}, definition, empty=escape(found)), nothing, ""
    x = np.array([one.spread for one in found.bins])
    y, off = (np.array([getattr(one, name) for one in found.bins]) for name in ("residual", "error"))
    figure = figures.lines(
        [Series(role, "mean residual", x, y)],
        Axis("standard deviation of the KV lengths / their mean", percent=True),
        Axis("measured / model - 1, centred", percent=True),
        dark=dark,
        markers=True,
        height=280,
    )
    figure["data"][0]["error_y"] = {"type": "data", "array": (1.96 * off).astype(np.float32), "thickness": 1}
    ends = np.array([x.min(), x.max()])
    figure["data"].insert(0, figures.reference_line("no effect", ends, np.zeros(2), dark=dark))
    figure["layout"]["showlegend"] = True
    columns = [
        Column("spread", "Unevenness of the KV lengths", "percent"),
        Column("residual", "Mean residual", "percent"),
        Column("error", "Its standard error", "percent"),
        Column("passes", "Passes", "%d"),
    ]
    rows = {name: [getattr(one, name) for one in found.bins] for name in ("spread", "residual", "error", "passes")}
    words = (
        f"{found.verdict.capitalize()}: alpha {found.alpha:+.2f}, 95 % interval {found.low:+.2f} to {found.high:+.2f}. "
        f"It adds {style.gap(found.share, 2)} to the mean pass and explains {style.percent(found.explained, 2)} of the "
        f"variance of the residuals of {asked.name}. Bars: 1.96 standard errors."
    )
    return Answer(pa.table(rows), "", columns, {run.run_id: found.passes}, definition), figure, words
