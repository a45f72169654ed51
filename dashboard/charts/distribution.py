"""Charts of one metric's distribution: curves, percentiles, splits by a property, the tail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from dashboard.charts import figures, number_table
from dashboard.charts.answer import Answer, Column, stack
from dashboard.charts.figures import Axis, Figure, Series
from dashboard.compare import judged_change
from dashboard.compare.numbers import Key
from dashboard.compare.rows import refused
from dashboard.frame import Frame, Side, header
from dashboard.metrics import Metric
from dashboard.queries import percentiles
from dashboard.queries.identity import repeats
from dashboard.queries.percentiles import Bucket
from dashboard.samples import Sample, quantile_pairs, sample, tail_attribution
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


def _apart(frame: Frame, side: Side, why: str) -> str:
    return f"Values of the {side.noun} and of the {frame.measured.role.name} run are shown, and not comparable: {why}"


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


def tail(frame: Frame, store: Store, metric: Metric, found: Sequence[tuple[Side, Sample]], top: int) -> Answer:
    """How much of the gap between the means the largest requests make, for every candidate; its noise is what repeats
    of the measured run show there."""
    held = {one.run_id: values for one, values in found}
    tops = sorted({1, 5, 10, 20, 50, 100, top})
    rows: list[dict[str, object]] = []
    apart = []
    for side in frame.replays:
        left = sample(store, frame.measured.run_id, metric, frame.population.for_side(side.run_id))
        said = refused(store, frame.measured.run_id, side.run_id, metric.name)
        apart += [f"{side.role.name.capitalize()} is not comparable: {said}"] if said else []
        withheld = bool(said) or number_table.withheld(frame, side)
        why = number_table.APART if said else number_table.WITHHELD
        spreads = _tail_spreads(frame, store, metric, side, left, tops)
        for row in tail_attribution(left, held[side.run_id], tops):
            rows.append(
                {
                    "top": row.top,
                    "side": side.role.name,
                    "share": row.share_of_requests,
                    "measured": row.measured,
                    "replay": row.replay,
                    "gap": None if withheld else row.gap,
                    "share_of_gap": None if withheld else row.share_of_gap,
                    "state": why if withheld else judged_change(row.gap, spreads.get(row.top)),
                }
            )
    rows.sort(key=lambda row: row["top"])  # type: ignore[arg-type, return-value]
    many = len(frame.replays) > 1
    columns = [
        Column("top", "Largest requests of the measured run", "%d"),
        *([Column("side", "Compared")] if many else []),
        Column("share", "Share of requests", "percent"),
        Column("measured", f"They add to the mean, measured ({metric.unit})", "%.2f"),
        Column("replay", f"The same share, {'compared' if many else 'replay'} ({metric.unit})", "%.2f"),
        Column("gap", f"Part of the gap ({metric.unit})", "%+.2f"),
        Column("share_of_gap", "Share of the gap", "percent"),
        Column("state", "State"),
    ]
    kinds = {
        one.name: pa.int64() if one.format == "%d" else pa.float64() if one.format else pa.string() for one in columns
    }
    table_ = pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()})
    words = "The mean is the area under the quantile curve, so the parts of the tail and of the body sum to its gap."
    n = {run_id: one.n for run_id, one in held.items()}
    return Answer(table_, "", columns, n, words, partly=" ".join(apart))


def _tail_spreads(
    frame: Frame, store: Store, metric: Metric, side: Side, left: Sample, tops: Sequence[int]
) -> dict[int, float]:
    """Of each count of requests, the largest part that a repeat of the measured run shows; empty without repeats."""
    if frame.population.matched:
        return {}
    spreads: dict[int, float] = {}
    for other in repeats(store, frame.measured.run_id):
        if other != side.run_id:
            for row in tail_attribution(left, sample(store, other, metric, frame.population), tops):
                spreads[row.top] = max(abs(row.gap), spreads.get(row.top, 0.0))
    return spreads


def slowest(frame: Frame, store: Store, metric: Metric, top: int) -> Answer:
    """The requests with the largest values on each side."""
    results = [
        (side, percentiles.slowest(store, side.run_id, metric, frame.population_of(side), top)) for side in frame.sides
    ]
    told = stack(results, n={side.run_id: None if r.not_recorded else len(r) for side, r in results})
    rows = told.rows
    if "value" in rows.column_names:
        scaled = pa.array(
            [None if v is None else v * metric.scale for v in rows.column("value").to_pylist()], pa.float64()
        )
        rows = rows.set_column(rows.column_names.index("value"), "value", scaled)
    columns = [
        Column("side", "Side", pinned=True),
        Column("value", f"{metric.label} ({metric.unit})", "%.1f", pinned=True),
        Column("conversation_id", "Conversation"),
        Column("turn_index", "Turn", "%d"),
        Column("lane", "Lane", "%d"),
        Column("dispatched_s", "Dispatched (s)", "%.2f"),
        Column("input_tokens", "Input (tokens)", "%d"),
        Column("cached_tokens", "Cached (tokens)", "%d"),
        Column("output_tokens", "Output (tokens)", "%d"),
        Column("preemptions", "Preemptions", "%d"),
        Column("request_id", "Request"),
    ]
    return Answer(rows, told.sql, columns, told.n, "", told.not_recorded)
