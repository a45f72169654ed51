"""Runs of several tools at one server: outcomes, definitions, numbers by one rule, the tools' own figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dashboard.charts import figures
from dashboard.charts.answer import Answer, Column
from dashboard.charts.figures import Axis, Figure
from dashboard.compare.beside import Figure as Told
from dashboard.compare.tool_runs import classes
from dashboard.compare.tools import RATES, STATISTICS, SideBySide
from dashboard.frame import Frame
from dashboard.metrics import MEASURES, METRICS, Metric, Window
from dashboard.queries.outcomes import OUTCOMES
from dashboard.samples import Sample, sample
from dashboard.store import Store


def outcomes(frame: Frame, found: SideBySide) -> tuple[Answer, Figure]:
    """What became of the requests of each run, in our classes, with the tools' own words and count."""
    names = classes(found.runs, found.population)
    rows: list[dict[str, Any]] = []
    for run in found.runs:
        told = [
            f"{OUTCOMES[name]}: {said}"
            for name in names
            if (said := run.words(name, found.population)) and said != OUTCOMES[name]
        ]
        own = run.tool_successes
        rows.append(
            {"run": run.letter, "tool": run.tool, "sent": run.attempted(found.population)}
            | {name: run.count(name, found.population) for name in names}
            | {"never_issued": run.outcomes.never_issued}
            | {"own": own and own[1], "own_name": own and own[0], "words": "; ".join(told) or None}
        )
    counts = {name: pa.int64() for name in ("sent", *names, "never_issued")}
    table = _table(
        rows, {"run": pa.string(), "tool": pa.string(), **counts, "own": pa.float64()}, ("own_name", "words")
    )
    columns = [
        Column("run", "Run", pinned=True),
        Column("tool", "Tool", pinned=True, width=170),
        Column("sent", "Sent", "%d"),
        *(Column(name, OUTCOMES[name].capitalize(), "%d") for name in names),
        Column("never_issued", "Never issued", "%d", help="Turns that were not sent; – where nobody counted them"),
        Column("own", "Successes by the tool's count", "%d"),
        Column("own_name", "Which it calls", width=140),
        Column("words", "The tool's words for our classes", width=460),
    ]
    series = [
        (side.role, side.name, [run.count(name, found.population) for name in names])
        for side, run in zip(frame.sides, found.runs, strict=True)
        if run.rows
    ]
    axes = Axis("outcome"), Axis("requests")
    bars = figures.bars([OUTCOMES[name] for name in names], series, *axes, dark=frame.dark)
    sql = "\n\n".join(f"-- {run.letter}\n{run.outcomes.result.sql}" for run in found.runs)
    words = "A success without content is one class whatever a tool calls it, and so is a stream that broke off."
    n = {run.run_id: run.attempted(found.population) for run in found.runs}
    return Answer(table, sql, columns, n, words, empty=EMPTY), bars


EMPTY = "None of these runs has rows of requests in this phase."


def definitions(found: SideBySide, every: bool) -> Answer:
    """Field by field, each run's rule with where it was read; those that differ first."""
    rows = []
    for one in found.definitions:
        if not every and one.state == "same":
            continue
        row: dict[str, str | None] = {
            "field": one.label,
            "state": {"unknown": "some do not say"}.get(one.state, one.state),
        }
        for run, field in zip(found.runs, one.fields, strict=True):
            row[run.letter] = None if field is None else str(field.value)
            row[f"{run.letter}_source"] = None if field is None else field.source
        rows.append(row)
    letters = [run.letter for run in found.runs]
    names = ("field", "state", *letters, *(f"{letter}_source" for letter in letters))
    columns = [
        Column("field", "Definition", pinned=True, width=170),
        Column("state", "State", width=110),
        *(Column(run.letter, f"{run.letter}: {run.tool}", width=250) for run in found.runs),
        *(Column(f"{letter}_source", f"Source, {letter}", width=200) for letter in letters),
    ]
    n = {run.run_id: sum(one.fields[place] is not None for one in found.definitions) for place, run in _placed(found)}
    words = "The rule of the rows as they are stored. A rule that a run does not say is taken for the usual one."
    empty = "Every definition is the same in all of these runs." if found.definitions else "No run says how it counts."
    return Answer(_table(rows, dict.fromkeys(names, pa.string())), "", columns, n, words, empty=empty)


def _placed(found: SideBySide) -> list[tuple[int, Any]]:
    return list(enumerate(found.runs))


def numbers(found: SideBySide) -> Answer:
    """Metric by metric, every run's statistics by our rule, and whether they can stand beside those of the first."""
    rows = [
        {
            "metric": METRICS[cell.metric].label,
            "run": cell.letter,
            **{name: cell.numbers[name].value for name in STATISTICS},
            "n": cell.n,
            "unit": METRICS[cell.metric].unit,
            "beside": cell.beside,
        }
        for cell in found.cells
    ]
    types = {"metric": pa.string(), "run": pa.string(), **dict.fromkeys(STATISTICS, pa.float64()), "n": pa.int64()}
    columns = [
        Column("metric", "Metric", pinned=True),
        Column("run", "Run", pinned=True),
        *(Column(name, name, "%.2f") for name in STATISTICS),
        Column("unit", "Unit"),
        Column("n", "n", "%d"),
        Column("beside", "Beside the first run", width=620),
    ]
    words = f"Computed from the rows by one rule; percentiles: {found.estimator.words}. n: values of the metric."
    return Answer(_table(rows, types, ("unit", "beside")), "", columns, _n(found), words, empty=NO_NUMBERS)


NO_NUMBERS = "None of these runs has a value of any of these metrics in this phase."


def rates(found: SideBySide) -> Answer:
    """Every run's rates over each window, and whether they can stand beside those of the first."""
    windows = [one.value for one in Window]
    rows = []
    for metric in RATES:
        for run in found.runs:
            cell = found.cell(metric, run.letter)
            rows.append(
                {
                    "rate": MEASURES[metric].label,
                    "run": run.letter,
                    **{name: cell.numbers[name].value for name in windows},
                    "unit": MEASURES[metric].unit,
                    **{f"n_{name}": cell.numbers[name].n for name in windows},
                    "beside": cell.beside,
                }
            )
    types = {"rate": pa.string(), "run": pa.string(), **dict.fromkeys(windows, pa.float64())}
    types |= {f"n_{name}": pa.int64() for name in windows}
    columns = [
        Column("rate", "Rate", pinned=True),
        Column("run", "Run", pinned=True),
        Column("unit", "Unit"),
        *(column for one in Window for column in _window_columns(one)),
        Column("beside", "Beside the first run", width=560),
    ]
    words = " ".join(f"{one.value.replace('_', ' ')}: {one.words}." for one in Window)
    return Answer(_table(rows, types, ("unit", "beside")), "", columns, _n(found), words)


def _window_columns(window: Window) -> tuple[Column, Column]:
    """A rate over one window, and the successes that this window counts."""
    name = window.value.replace("_", " ")
    return (
        Column(window.value, name.capitalize(), "%.3f", help=window.words),
        Column(f"n_{window.value}", f"n {name}", "%d", help="Successes that this window counts"),
    )


def own(found: SideBySide) -> Answer:
    """Every figure of the tools that is of a metric of ours, beside ours; a summary's stand alone."""
    rows: list[dict[str, Any]] = []
    for run in found.runs:
        rows += [{"run": run.letter, **own_row(figure)} for figure in found.own(run.letter)]
    types = {
        "run": pa.string(),
        "metric": pa.string(),
        "statistic": pa.string(),
        "unit": pa.string(),
        "told": pa.float64(),
        "ours": pa.float64(),
        "difference": pa.float64(),
        "relative": pa.float64(),
    }
    columns = [
        Column("run", "Run", pinned=True),
        Column("metric", "Metric", pinned=True),
        Column("statistic", "Statistic"),
        Column("unit", "Unit"),
        Column("told", "The tool says", "%.2f"),
        Column("ours", "Ours", "%.2f"),
        Column("difference", "Difference", "%+.2f"),
        Column("relative", "Relative", "percent"),
        Column("why", "Why", width=560),
        Column("name", "Its name", width=200),
    ]
    sql = "\n\n".join(f"-- {letter}\n{text}" for letter, text in found.sql.items() if text)
    words = (
        "Difference: the tool's figure minus ours, over the population, estimator and window chosen above. A summary "
        "without rows has nothing of ours beside it."
    )
    empty = "None of these runs brings figures of its tool for a metric of ours."
    return Answer(_table(rows, types, ("why", "name")), sql, columns, _n(found), words, empty=empty)


def own_row(figure: Told) -> dict[str, Any]:
    """One figure of a tool as a row."""
    return {
        "metric": figure.key and figure.key.label,
        "statistic": figure.statistic,
        "unit": figure.unit,
        "told": figure.value,
        "ours": figure.ours.value if figure.ours else None,
        "difference": figure.difference,
        "relative": figure.relative,
        "why": figure.explanation,
        "name": figure.name,
    }


def distribution(frame: Frame, store: Store, found: SideBySide, metric: Metric) -> tuple[Answer, Figure, str]:
    """The metric's ECDF of every run whose definition lets it stand beside the first, and a sentence on the others."""
    drawn, left, missing = [], [], []
    for side, run in zip(frame.sides, found.runs, strict=True):
        if not run.rows:
            missing.append(f"{run.letter} has no rows.")
            continue
        one = sample(store, run.run_id, metric, found.population)
        cell = next((c for c in found.cells if (c.metric, c.letter) == (metric.name, run.letter)), None)
        if one.not_recorded:
            missing.append(f"{run.letter}: {one.not_recorded}")
        elif cell is not None and cell.refused:
            left.append(f"{run.letter} is not drawn: {cell.refused}")
        else:
            drawn.append((side, one))
    curves = [(side.role, side.name, one) for side, one in drawn]
    axis = Axis(f"{metric.label}, {metric.unit}", log=_positive([one for _, one in drawn]))
    figure = figures.ecdf(curves, axis, dark=frame.dark)
    parts = [_ecdf_rows(side.role.name, side.run_id, one) for side, one in drawn]
    rows = pa.concat_tables(parts) if parts else pa.table({})
    columns = [
        Column("run", "Run"),
        Column("value", f"{metric.label} ({metric.unit})", "%.2f"),
        Column("share", "Share at or below", "percent"),
    ]
    sql = "\n\n".join(f"-- {side.role.name}\n{one.sql}" for side, one in drawn)
    words = f"{metric.label}: {metric.definition}."
    n = {side.run_id: one.n for side, one in drawn}
    empty = "No run has a value of this metric in this phase."
    return Answer(rows, sql, columns, n, words, empty=empty), figure, " ".join([*left, *missing])


def _ecdf_rows(letter: str, run_id: str, one: Sample) -> pa.Table:
    x, share = one.ecdf()
    names = pa.array([letter] * len(x), pa.string()), pa.array([run_id] * len(x), pa.string())
    return pa.table({"run": names[0], "run_id": names[1], "value": np.asarray(x), "share": np.asarray(share)})


def _positive(found: Sequence[Sample]) -> bool:
    """Whether a log axis can show every value that matters: bursts have gaps of zero."""
    return all(not one.n or one.values[one.n // 20] > 0 for one in found)


def _n(found: SideBySide) -> dict[str, int | None]:
    return {run.run_id: run.attempted(found.population) for run in found.runs}


def _table(rows: Sequence[dict[str, Any]], types: dict[str, pa.DataType], texts: Sequence[str] = ()) -> pa.Table:
    whole = types | dict.fromkeys(texts, pa.string())
    return pa.table({name: pa.array([row.get(name) for row in rows], kind) for name, kind in whole.items()})
