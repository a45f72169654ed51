"""The Source page: which run, its files and checks, the tool's figures beside ours, and what was sampled over time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import streamlit as st

from dashboard import widgets
from dashboard.charts import figures
from dashboard.charts.answer import Answer, Column, answer
from dashboard.charts.comparison.cohort import successes
from dashboard.charts.figures import Axis, Figure, Series
from dashboard.charts.records.runs import LIGHTS, MARKS
from dashboard.charts.style import TOOLS
from dashboard.charts.tools.tools import own_row
from dashboard.compare.beside import Figure as Told
from dashboard.compare.source import Source, source
from dashboard.frame import Frame, Side, escape
from dashboard.metrics import Population
from dashboard.queries import telemetry

ABOUT = {"run": "run", "warmup": "warm-up"}
"""What a figure is about, where ours can stand beside it."""
_WORDS = {"fail": "failed", "unknown": "unknown", "pass": "passed"}


def source_frame() -> tuple[Frame, Source]:
    """The run that is chosen, the measured one of the bar at first. Stops the page where there is none."""
    widgets.entered()
    found = [one for one in widgets.entries() if one.state == "ok"]
    if not found:
        st.info("There are no runs in this store yet: import what you have on the Runs page.")
        st.stop()
    ids = [one.run_id for one in found]
    asked = st.session_state.get("src") or st.query_params.get("src") or st.session_state.get("m")
    if asked and asked not in ids and (problem := widgets.unusable(asked, widgets.entries())):
        st.error(escape(problem))
        asked = None
    chosen = widgets.control("src", options=ids, default=asked if asked in ids else ids[0], flat=False)
    population, estimator, window = widgets.scope()
    population = Population(population.phase) if population.matched else population
    told = source(widgets.store(), chosen, population, estimator, window)
    side = Side(TOOLS[0], told.bundle, said=told.tool)
    return Frame(
        side, (), population, estimator, window, True, widgets.dark(), partial(widgets.permalink, "source")
    ), told


def box(told: Source) -> list[str]:
    """The validity box: one light, the counts, and every check that did not pass."""
    counts = {verdict: sum(check.verdict == verdict for check in told.checks) for verdict in _WORDS}
    words = ", ".join(f"{count} {_WORDS[verdict]}" for verdict, count in counts.items() if count) or "no check was made"
    lines = [f"**{LIGHTS[told.light]}**: {words}."]
    open_ = [check for check in told.checks if check.verdict != "pass"]
    return lines + [f"{MARKS[check.verdict]} **{escape(check.check)}**: {escape(check.detail)}" for check in open_]


def passed(told: Source) -> list[str]:
    """The checks that passed, a line each."""
    found = [check for check in told.checks if check.verdict == "pass"]
    return [f"{MARKS['pass']} {escape(check.check)}: {escape(check.detail)}" for check in found]


def files(told: Source) -> Answer:
    """The files that were read, with their digests."""
    rows = pa.table({"file": [name for name, _ in told.files], "sha256": [digest for _, digest in told.files]})
    columns = [Column("file", "File", width=420), Column("sha256", "SHA-256", width=520)]
    return Answer(rows, "", columns, empty="The run does not say which files it was made from.")


def definitions(told: Source) -> Answer:
    """What the numbers of the rows mean."""
    names = ("field", "rule", "source")
    rows = pa.table({name: [one[place] for one in told.definitions] for place, name in enumerate(names)})
    columns = [Column("field", "Definition", width=180), Column("rule", "Rule", width=480), Column("source", "Source")]
    return Answer(rows, "", columns, empty="The run does not say how its numbers are defined.")


def beside(frame: Frame, told: Source) -> Answer:
    """The tool's figures that are of a number of ours, with the difference and what explains it."""
    columns = [
        Column("about", "About", width=70),
        Column("metric", "Metric", pinned=True),
        Column("statistic", "Statistic"),
        Column("unit", "Unit"),
        Column("told", "The tool says", "%.3f"),
        Column("ours", "Ours", "%.3f"),
        Column("difference", "Difference", "%+.3f"),
        Column("relative", "Relative", "percent"),
        Column("why", "Why", width=620),
        Column("name", "Its name", width=200),
    ]
    floats = ("told", "ours", "difference", "relative")
    found = [{"about": ABOUT[figure.scope], **own_row(figure)} for figure in told.beside]
    rows = _rows(found, [column.name for column in columns], floats)
    words = (
        "Difference: the tool's figure minus ours, over the population, estimator and window chosen above; of the "
        "warm-up over its requests. n: successes of that population."
    )
    empty = "The tool left no figure that is of a number of ours."
    return Answer(rows, told.sql, columns, successes(frame, widgets.store()), words, empty=empty)


def others(told: Source, text: str) -> Answer:
    """Every other figure of the tool in which each word of ``text`` occurs."""
    columns = [
        Column("scope", "About"),
        Column("name", "Name", pinned=True, width=260),
        Column("labels", "Labels", width=200),
        Column("statistic", "Statistic"),
        Column("value", "Value", "%.4g"),
        Column("unit", "Unit"),
        Column("n", "n", "%d"),
        Column("definition", "Its rule", width=360),
        Column("source", "File", width=240),
    ]
    names = [column.name for column in columns]
    wanted = text.lower().split()
    shown = [{name: getattr(figure, name) for name in names} for figure in told.others if _holds(figure, wanted)]
    empty = "No figure of the tool holds these words." if wanted else "The tool left no other figure."
    return Answer(_rows(shown, names, ("value",)), told.sql, columns, empty=empty)


def _holds(figure: Told, words: Sequence[str]) -> bool:
    text = f"{figure.scope} {figure.name} {figure.labels} {figure.statistic} {figure.source}".lower()
    return all(word in text for word in words)


def over_time(frame: Frame, name: str, unit: str) -> tuple[Answer, Figure]:
    """One sampled figure, or one of the tool's slices, over the run."""
    result = telemetry.series(widgets.store(), frame.measured.run_id, name)
    rows = result.rows()
    labels = list(dict.fromkeys(row.get("labels") or "" for row in rows))
    lines = []
    for place, label in enumerate(labels):
        mine = [row for row in rows if (row.get("labels") or "") == label]
        x = np.array([row["time_ns"] for row in mine], np.float64) / 1e9
        y = np.array([row["value"] for row in mine], np.float64)
        lines.append(Series(TOOLS[place % len(TOOLS)], label or name, x, y))
    figure = figures.lines(lines, Axis("s from profile start"), Axis(unit or name), dark=frame.dark)
    samples = sum(row["samples"] for row in rows)
    return answer(result, n={frame.measured.run_id: samples}), figure


def _rows(rows: Sequence[dict[str, Any]], names: Sequence[str], floats: Sequence[str]) -> pa.Table:
    types = {name: pa.float64() if name in floats else pa.int64() if name == "n" else pa.string() for name in names}
    return pa.table({name: pa.array([row[name] for row in rows], types[name]) for name in names})
