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
    spread = [row.noise if row.measured.value else None for row in shown[0][1]]
    rows = shown[0][1]
    figure["data"].insert(
        0,
        {
            "type": "bar",
            "name": "noise of the measured run",
            "x": labels,
            "base": [
                100 * (s.low / r.measured.value - 1) if s and r.measured.value else 0
                for s, r in zip(spread, rows, strict=True)
            ],
            "y": [
                100 * (s.high - s.low) / r.measured.value if s and r.measured.value else 0
                for s, r in zip(spread, rows, strict=True)
            ],
            "marker": {"color": "rgba(128,128,136,0.28)", "line": {"width": 0}},
            "width": 0.86,
            "offset": -0.43,
            "hoverinfo": "skip",
        },
    )
    figure["layout"]["yaxis"] |= {"zeroline": True, "zerolinewidth": 1, "ticksuffix": " %"}
    figure["layout"]["showlegend"] = True
    return figure


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
