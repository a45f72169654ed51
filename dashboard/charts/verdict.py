"""The table of a comparison, its gates, and the consistency arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from dashboard.charts import figures
from dashboard.charts.answer import Answer, Column
from dashboard.charts.figures import Axis, Figure
from dashboard.compare import Comparison, Row, judged
from dashboard.compare.gates import Gate
from dashboard.compare.numbers import Key
from dashboard.frame import Frame, Side, header
from dashboard.metrics import METRICS
from dashboard.queries import passes
from dashboard.queries.totals import totals
from dashboard.samples import sample
from dashboard.store import Store

DECIMALS = {"ms": 1, "share": 4, "count": 0, "requests": 2, "1/s": 3, "tok/s": 1, "tokens": 1}
WITHHELD = "not like for like"


def parse_gates(text: str) -> list[Gate]:
    """The gates of a contract, separated by spaces or semicolons."""
    return [Gate.parse(part) for part in text.replace(";", " ").split()]


def columns() -> list[Column]:
    """The columns of a metric table."""
    return [
        Column("metric", "Metric", pinned=True, width=165),
        Column("statistic", "Statistic", pinned=True, width=110),
        Column("unit", "Unit", width=60),
        Column("measured", "Measured", "%.6g", width=85),
        Column("replay", "Replay", "%.6g", width=85),
        Column("gap", "Gap (%)", "%+.1f", "replay / measured - 1, on unrounded values", width=75),
        Column("low", "Noise from (%)", "%+.1f", "where the measured side may lie, relative to its value", width=95),
        Column("high", "Noise to (%)", "%+.1f", width=85),
        Column("state", "State", help="Read from the side that is compared; ~ is inside the noise", width=190),
        Column("measured_n", "n measured", "%d", width=85),
        Column("replay_n", "n replay", "%d", width=75),
        Column("reason", "Rests on", width=330),
    ]


def table(frame: Frame, store: Store, side: Side, rows: Sequence[Row], n: Mapping[str, int | None]) -> Answer:
    """Rows of a comparison; without an acknowledgement an unlike pair has values, but no gaps."""
    told = [row_of(row, not frame.acknowledged and bool(side.regime)) for row in rows]
    names = [column.name for column in columns()]
    types = {
        "measured": pa.float64(),
        "replay": pa.float64(),
        "gap": pa.float64(),
        "low": pa.float64(),
        "high": pa.float64(),
    }
    rows_table = pa.table({name: pa.array([one[name] for one in told], types.get(name)) for name in names})
    words = header(frame, "gap = replay / measured - 1. ") + " ".join(
        f"{label}: {definition}." for label, definition in {row.key.label: row.key.definition for row in rows}.items()
    )
    return Answer(rows_table, sql_of(frame, store, side, [row.key for row in rows]), columns(), n, words)


def sql_of(frame: Frame, store: Store, side: Side, keys: Sequence[Key]) -> str:
    """The queries that the numbers of both sides were read off, each once."""
    texts: dict[str, None] = {}
    for run in (frame.measured, side):
        population = frame.population_of(run)
        for metric in dict.fromkeys(key.metric for key in keys):
            if metric in METRICS:
                text = sample(store, run.run_id, METRICS[metric], population).sql
            elif metric in ("pass_count", "pass_time"):
                text = passes.classes(store, run.run_id, population).sql
            elif "requests" in store.tables(run.run_id):  # a sweep has none
                text = totals(store, run.run_id, population).sql
            else:
                continue
            texts[f"-- {run.role.name}\n{text}"] = None
    return "\n\n".join(texts)


def row_of(row: Row, withheld: bool) -> dict[str, Any]:
    """One row in the units of the screen."""
    decimals = DECIMALS.get(row.key.unit, 2)
    base = row.measured.value
    spread = row.noise if base else None
    return {
        "metric": row.key.label,
        "statistic": row.key.statistic.replace("_", " "),
        "unit": row.key.unit,
        "measured": None if base is None else round(base, decimals),
        "replay": None if row.replay.value is None else round(row.replay.value, decimals),
        "gap": None if withheld or row.gap is None else 100 * row.gap,
        "low": None if withheld or not spread or not base else 100 * (spread.low / base - 1),
        "high": None if withheld or not spread or not base else 100 * (spread.high / base - 1),
        "state": WITHHELD if withheld else judged(row),
        "measured_n": row.measured.n,
        "replay_n": row.replay.n,
        "reason": WITHHELD if withheld else row.reason,
    }


def gaps(frame: Frame, found: Sequence[tuple[Side, Comparison]], names: Sequence[str]) -> Figure:
    """Signed gaps of the headline numbers, one bar per replay, over the noise of the measured side."""
    shown = [(side, [comparison.row(name) for name in names]) for side, comparison in found]
    labels = [f"{row.key.label} {row.key.statistic}" for row in shown[0][1]]
    series = [
        (side.role, side.name, [None if row.gap is None else 100 * row.gap for row in rows]) for side, rows in shown
    ]
    figure = figures.bars(labels, series, Axis(""), Axis("gap, %"), dark=frame.dark, height=300)
    noise = [_relative(row) for row in shown[0][1]]
    ends = gap_axis([value for _, _, values in series for value in values if value is not None], noise)
    told = [pair and (max(pair[0], ends[0]), min(pair[1], ends[1])) for pair in noise]
    figure["data"].insert(
        0,
        {
            "type": "bar",
            "name": "noise of the measured run",
            "x": labels,
            "base": [pair[0] if pair else 0 for pair in told],
            "y": [pair[1] - pair[0] if pair else 0 for pair in told],
            "marker": {"color": "rgba(128,128,136,0.28)", "line": {"width": 0}},
            "width": 0.86,
            "offset": -0.43,
            "hoverinfo": "skip",
        },
    )
    if beyond := _beyond(labels, noise, ends):
        figure["data"].append(beyond)
        figure["layout"]["yaxis"]["range"] = [1.04 * ends[0], 1.04 * ends[1]]
    figure["layout"]["yaxis"] |= {"zeroline": True, "zerolinewidth": 1, "ticksuffix": " %"}
    figure["layout"]["showlegend"] = True
    return figure


Ends = tuple[float, float]


def _relative(row: Row) -> Ends | None:
    """The noise of the measured side in percent of its value; None where it is unknown."""
    base = row.measured.value
    return (100 * (row.noise.low / base - 1), 100 * (row.noise.high / base - 1)) if row.noise and base else None


def gap_axis(gaps: Sequence[float], noise: Sequence[Ends | None]) -> Ends:
    """Where the axis of gaps ends, in percent: it holds every gap, and noise up to three times the largest of them.

    A bootstrap of a tail may reach twenty times as far as any gap, and would make a line of each.
    """
    known = [pair for pair in noise if pair]
    reach = 3 * max((abs(gap) for gap in gaps), default=0.0)
    if not reach:
        return min((low for low, _ in known), default=0.0), max((high for _, high in known), default=0.0)
    low = min([0.0, *gaps, *(max(low, -reach) for low, _ in known)])
    high = max([0.0, *gaps, *(min(high, reach) for _, high in known)])
    return low, high


def _beyond(labels: Sequence[str], noise: Sequence[Ends | None], ends: Ends) -> dict[str, Any] | None:
    """Marks at the end of the axis for noise that reaches beyond it, with how far it reaches; None where none does."""
    marks = [
        (label, at, sign, words)
        for label, pair in zip(labels, noise, strict=True)
        for at, sign, words in (
            (ends[0], "triangle-down", f"noise down to {pair[0]:+,.0f} %" if pair and pair[0] < ends[0] else ""),
            (ends[1], "triangle-up", f"noise up to {pair[1]:+,.0f} %" if pair and pair[1] > ends[1] else ""),
        )
        if words
    ]
    if not marks:
        return None
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": "noise beyond the axis",
        "x": [label for label, _, _, _ in marks],
        "y": [at for _, at, _, _ in marks],
        "text": [words.split(" to ")[1] for _, _, _, words in marks],
        "textposition": ["bottom center" if sign == "triangle-up" else "top center" for _, _, sign, _ in marks],
        "hovertext": [words for _, _, _, words in marks],
        "hoverinfo": "text",
        "cliponaxis": False,
        "marker": {"symbol": [sign for _, _, sign, _ in marks], "size": 9, "color": "rgb(128,128,136)"},
    }


def consistency(frame: Frame, side: Side, found: Comparison) -> Answer:
    """Little's law on both sides beside what was counted and what was configured."""
    rows = []
    for name, run_id, told in (
        ("measured", frame.measured.run_id, found.consistency[0]),
        (side.role.name, side.run_id, found.consistency[1]),
    ):
        numbers = {"little": told.little, "observed": told.observed, "lanes": told.lanes}
        rows.append({"side": name, "run": run_id, **numbers, "note": told.note or None})
    table_ = pa.Table.from_pylist(rows)
    return Answer(
        table_,
        "",
        [
            Column("side", "Side", pinned=True),
            Column("little", "Throughput x mean E2E (requests)", "%.2f"),
            Column("observed", "Mean in flight, counted (requests)", "%.2f"),
            Column("lanes", "Lanes configured", "%d"),
            Column("note", "Beside the count", width=330),
        ],
        definition="Fixed-window throughput times mean E2E. Lanes hold think time, so they exceed requests in flight.",
    )


def gate_table(found: Comparison) -> Answer:
    """Every gate with its value and verdict."""
    rows = [
        {
            "gate": result.gate.text,
            "population": result.gate.population.words,
            "measured": result.measured,
            "replay": result.replay,
            "verdict": result.verdict,
            "reason": result.reason,
        }
        for result in found.gates
    ]
    names = ("gate", "population", "measured", "replay", "verdict", "reason")
    return Answer(
        pa.table({name: [row[name] for row in rows] for name in names}),
        "",
        [
            Column("gate", "Gate", pinned=True),
            Column("verdict", "Verdict"),
            Column("measured", "Measured", "%.4f"),
            Column("replay", "Replay", "%.4f"),
            Column("reason", "Why"),
            Column("population", "Population"),
        ],
    )
