"""Charts of one metric's distribution: curves, percentiles, splits by a property, the tail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from dashboard.charts import figures
from dashboard.charts.answer import Answer, Column, stack
from dashboard.charts.comparison import number_table
from dashboard.charts.figures import Axis, Figure, Series
from dashboard.charts.panel.log_axis import NOT_ON_LOG
from dashboard.compare.numbers import Key
from dashboard.compare.rows import refused
from dashboard.frame import Frame, Side, header
from dashboard.metrics import Metric
from dashboard.queries import percentiles
from dashboard.queries.percentiles import Bucket
from dashboard.samples import Sample, quantile_pairs, sample
from dashboard.store import Store

SHOWN = ("mean", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "p99.9", "std", "min", "max")

NOT_DRAWN = {
    "tail": "A tail is drawn from two values on, and no side has them.",
    "qq": "Quantiles are drawn against those of the measured run: that takes values on both sides.",
}
"""Curves that some rows are not enough for."""


def samples(frame: Frame, store: Store, metric: Metric) -> list[tuple[Side, Sample]]:
    """The sorted sample of every side."""
    return [(side, sample(store, side.run_id, metric, frame.population_of(side))) for side in frame.sides]


def curve(
    frame: Frame, store: Store, metric: Metric, found: Sequence[tuple[Side, Sample]], kind: str, log: bool
) -> tuple[Answer, Figure]:
    """ECDF, tail, percentile curve or quantile-quantile plot; what is not comparable has no point in the last."""
    apart = {
        side.run_id: str(said)
        for side, _ in found[1:]
        if (said := refused(store, frame.measured.run_id, side.run_id, metric.name))
    }
    axis = Axis(f"{metric.label}, {metric.unit}", log=log and _positive(found))
    drawn = [(side.role, side.name, one) for side, one in found]
    if kind == "ecdf":
        figure = figures.ecdf(drawn, axis, dark=frame.dark)
    elif kind == "tail":
        figure = figures.tail(drawn, axis, dark=frame.dark)
    elif kind == "percentile":
        figure = figures.percentile_curve(drawn, axis, frame.estimator, dark=frame.dark)
    else:
        pairs = [
            (side.role, side.name, *quantile_pairs(found[0][1], one)[1:])
            for side, one in found[1:]
            if side.run_id not in apart
        ]
        y = Axis(header(frame, f"replay {metric.label}, {metric.unit}"), log=axis.log)
        figure = figures.quantile_quantile(
            pairs, Axis(f"{frame.measured.role.name} {metric.label}, {metric.unit}", log=axis.log), y, dark=frame.dark
        )
    rows = [_ecdf_rows(side, one) for side, one in found]
    undefined = " ".join(
        f"{side.role.name}: {one.undefined:,} successes have no value." for side, one in found if one.undefined
    )
    missing = " ".join(one.not_recorded for _, one in found if one.not_recorded)
    columns = [
        Column("side", "Side"),
        Column("value", f"{metric.label} ({metric.unit})", "%.2f"),
        Column("share", "Share at or below", "percent"),
    ]
    n = {side.run_id: None if one.not_recorded else one.n for side, one in found}
    sql = "\n\n".join(f"-- {side.role.name}\n{one.sql}" for side, one in found)
    everywhere = all(one.not_recorded for _, one in found)
    words = f"{metric.label}: {metric.definition}. {undefined} {missing}".strip()
    told = Answer(pa.concat_tables(rows), sql, columns, n, words, missing if everywhere else None)
    told = replace(
        told, partly=" ".join(_apart(frame, side, apart[side.run_id]) for side, _ in found if side.run_id in apart)
    )
    if kind == "qq" and apart and not figure["data"]:
        told = replace(told, empty="These values are not comparable, so no quantile is drawn against another.")
    elif told.rows.num_rows and kind in NOT_DRAWN:
        told = replace(told, empty=NOT_DRAWN[kind])
    return told, figure


def left_out(frame: Frame, found: Sequence[tuple[Side, Sample]], figure: Figure) -> str:
    """How many values a logarithmic axis of values cannot show; empty where the axis is none, or shows all."""
    layout = figure["layout"]
    if not figure["data"] or "log" not in (layout["xaxis"].get("type"), layout["yaxis"].get("type")):
        return ""
    counts = [(side, int(np.searchsorted(one.values, 0.0, side="right"))) for side, one in found]
    words = [f"{count:,} of {side.role.name}" for side, count in counts if count]
    return f"{NOT_ON_LOG}: {', '.join(words)}." if words else ""


def _apart(frame: Frame, side: Side, why: str) -> str:
    return f"Values of {side.called} and of the {frame.measured.role.name} run are shown, and not comparable: {why}"


def _ecdf_rows(side: Side, one: Sample) -> pa.Table:
    """Values and shares of a side; an empty one has the same columns."""
    x, share = one.ecdf()
    names = pa.array([side.role.name] * len(x), pa.string()), pa.array([side.run_id] * len(x), pa.string())
    return pa.table({"side": names[0], "run": names[1], "value": x, "share": share})


def _positive(found: Sequence[tuple[Side, Sample]]) -> bool:
    """Whether a log axis can show every value that matters: bursts have gaps of zero."""
    return all(not one.n or one.values[one.n // 20] > 0 for _, one in found)


def table(frame: Frame, store: Store, metric: Metric, found: Sequence[tuple[Side, Sample]]) -> Answer:
    """Statistics of every side with gap, noise and state."""
    keys = [Key(metric.name, name) for name in SHOWN]
    n = {one.run_id: held.n for one, held in found}
    return number_table.table(frame, store, number_table.number_rows(frame, store, keys), n)


def by_property(frame: Frame, store: Store, metric: Metric, by: str, log: bool) -> tuple[Answer, Figure]:
    """Median and p90 by a property of the request, and what each bucket adds to the mean."""
    results, buckets = [], []
    for side in frame.sides:
        rows, result = percentiles.by_bucket(store, side.run_id, metric, frame.population_of(side), by, frame.estimator)
        results.append((side, result))
        buckets.append((side, {row.label: row for row in rows}, rows))
    edges = sorted({(row.low, row.label) for _, _, rows in buckets for row in rows})
    labels = [label for _, label in edges]
    panels = []
    for title, name in ((f"median, {metric.unit}", "p50"), (f"p90, {metric.unit}", "p90")):
        lines = [Series(side.role, side.name, np.array(labels), _of(held, labels, name)) for side, held, _ in buckets]
        x = Axis(percentiles.PROPERTIES[by], categories=tuple(labels))
        panels.append((title, figures.lines(lines, x, Axis(title, log=log), dark=frame.dark, markers=True)))
    title = f"adds to the mean, {metric.unit}"
    series = [(side.role, side.name, _of(held, labels, "contribution")) for side, held, _ in buckets]
    x = Axis(percentiles.PROPERTIES[by])
    panels.append((title, figures.bars(labels, series, x, Axis(title), dark=frame.dark)))
    figure = figures.small_multiples(panels, height=270)
    figure["layout"] |= {"barmode": "group", "bargap": 0.25}
    rows_table = [
        {
            "side": side.role.name,
            "bucket": row.label,
            "n": row.n,
            "share": row.share,
            "mean": row.statistics["mean"],
            "p50": row.statistics["p50"],
            "p90": row.statistics["p90"],
            "p99": row.statistics["p99"],
            "contribution": row.contribution,
        }
        for side, _, rows in buckets
        for row in rows
    ]
    names = ("side", "bucket", "n", "share", "mean", "p50", "p90", "p99", "contribution")
    columns = [
        Column("side", "Side", pinned=True),
        Column("bucket", percentiles.PROPERTIES[by].capitalize(), pinned=True),
        Column("n", "n", "%d"),
        Column("share", "Share of requests", "percent"),
        *(Column(name, f"{name} ({metric.unit})", "%.1f") for name in names[4:8]),
        Column("contribution", f"Adds to the mean ({metric.unit})", "%.2f"),
    ]
    n = {side.run_id: sum(row.n for row in rows) for side, _, rows in buckets}
    words = "Contributions sum to the mean of the whole sample: they show how much of it short outputs, say, make."
    told = stack(results)
    data = pa.table({name: [row[name] for row in rows_table] for name in names})
    return Answer(data, told.sql, columns, n, words, told.not_recorded), figure


def _of(held: Mapping[str, Bucket], labels: Sequence[str], name: str) -> np.ndarray:
    """A number of every bucket; NaN where the side has none."""
    rows = [held.get(label) for label in labels]
    found = [row and (row.contribution if name == "contribution" else row.statistics[name]) for row in rows]
    return np.array([np.nan if number is None else number for number in found], dtype=np.float64)
