"""Gaps of a comparison as bars, its gates, and the consistency arithmetic, for every candidate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dashboard.charts import figures, style
from dashboard.charts.answer import Answer, Column
from dashboard.charts.figures import Axis, Figure
from dashboard.compare import Comparison, Row
from dashboard.compare.claim import gates_hold
from dashboard.compare.gates import GateResult
from dashboard.frame import Frame, Side


def gaps(frame: Frame, found: Sequence[tuple[Side, Comparison]], names: Sequence[str]) -> Figure:
    """Signed gaps of the headline numbers, one bar per replay, over what the measured side is judged by."""
    shown = [(side, [comparison.row(name) for name in names]) for side, comparison in found]
    labels = [f"{row.key.label} {row.key.statistic}" for row in shown[0][1]]
    series = [
        (side.role, side.name, [None if row.gap is None else 100 * row.gap for row in rows]) for side, rows in shown
    ]
    figure = figures.bars(labels, series, Axis(""), Axis("gap, %"), dark=frame.dark, height=300)
    rows = shown[0][1]
    noise = [_relative(row, row.noise.interval if row.noise else None) for row in rows]
    wider = [_relative(row, row.noise.wider if row.noise else None) for row in rows]
    reach = [more or pair for more, pair in zip(wider, noise, strict=True)]
    ends = gap_axis([value for _, _, values in series for value in values if value is not None], reach)
    bands = [_band(labels, pairs, ends, at) for at, pairs in ((1, wider), (0, noise)) if any(pairs)]
    figure["data"] = [*bands, *figure["data"]]
    if beyond := _beyond(labels, reach, ends):
        figure["data"].append(beyond)
        figure["layout"]["yaxis"]["range"] = [1.04 * ends[0], 1.04 * ends[1]]
    figure["layout"]["yaxis"] |= {"zeroline": True, "zerolinewidth": 1, "ticksuffix": " %"}
    figure["layout"]["showlegend"] = True
    return figure


Ends = tuple[float, float]


def _relative(row: Row, span: Ends | None) -> Ends | None:
    """A span of values of the measured side in percent of its value; None where there is none."""
    base = row.measured.value
    return (100 * (span[0] / base - 1), 100 * (span[1] / base - 1)) if span and base else None


def _band(labels: Sequence[str], pairs: Sequence[Ends | None], ends: Ends, at: int) -> dict[str, Any]:
    """Grey behind the bars, cut where the axis ends: the noise, or (1) how far redrawing reaches beyond it."""
    told = [pair and (max(pair[0], ends[0]), min(pair[1], ends[1])) for pair in pairs]
    return {
        "type": "bar",
        "name": style.NOISE_WORDS[at],
        "x": list(labels),
        "base": [pair[0] if pair else 0 for pair in told],
        "y": [pair[1] - pair[0] if pair else 0 for pair in told],
        "marker": {"color": style.NOISE[at], "line": {"width": 0}},
        "width": 0.86,
        "offset": -0.43,
        "hoverinfo": "skip",
    }


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


def consistency(frame: Frame, found: Sequence[tuple[Side, Comparison]]) -> Answer:
    """Little's law on every side beside what was counted and what was configured."""
    sides = [(frame.measured, found[0][1].consistency[0]), *((side, one.consistency[1]) for side, one in found)]
    rows = [
        {
            "side": side.role.name,
            "run": side.run_id,
            "little": told.little,
            "observed": told.observed,
            "lanes": told.lanes,
            "note": told.note or None,
        }
        for side, told in sides
    ]
    names = {"side": pa.string(), "run": pa.string(), "little": pa.float64(), "observed": pa.float64()}
    names |= {"lanes": pa.int64(), "note": pa.string()}
    return Answer(
        pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in names.items()}),
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


def held_by(found: Sequence[tuple[Side, Comparison]]) -> str:
    """How many gates hold, for every candidate."""
    return "; ".join(
        gates_hold(one.gates) + (f" for {side.role.name}" if len(found) > 1 else "") for side, one in found
    )


_JUDGED = ("verdict", "measured", "replay", "reason")


def gate_table(found: Sequence[tuple[Side, Comparison]]) -> Answer:
    """Every gate with its values and verdicts for every candidate; several have a cell each, and all of it behind."""
    many = len(found) > 1
    rows = [
        {"gate": results[0].gate.text, "population": results[0].gate.population.words}
        | {f"{name}_{at}": getattr(one, name) for at, one in enumerate(results) for name in _JUDGED}
        | ({f"cell_{at}": _gate_cell(one) for at, one in enumerate(results)} if many else {})
        for results in zip(*(one.gates for _, one in found), strict=True)
    ]
    columns = [Column("gate", "Gate", pinned=True)]
    if many:
        columns += [Column(f"cell_{at}", side.role.name.capitalize(), width=185) for at, (side, _) in enumerate(found)]
    for at, (side, _) in enumerate(found):
        of, beside = (f" of {side.role.name}", f", beside {side.role.name}") if many else ("", "")
        columns += [
            Column(f"verdict_{at}", f"Verdict{of}", behind=many),
            Column(f"measured_{at}", f"Measured{beside}", "%.4f", behind=many),
            Column(f"replay_{at}", side.role.name.capitalize(), "%.4f", behind=many),
        ]
    columns += [
        Column(f"reason_{at}", f"Why, {side.role.name}" if many else "Why", behind=many)
        for at, (side, _) in enumerate(found)
    ]
    columns.append(Column("population", "Population"))
    kinds = {one.name: pa.float64() if one.format else pa.string() for one in columns}
    return Answer(pa.table({name: pa.array([row[name] for row in rows], kinds[name]) for name in kinds}), "", columns)


def _gate_cell(one: GateResult) -> str:
    """What a gate says of a candidate, with both values."""
    left, right = ("–" if value is None else f"{value:,.5g}" for value in (one.measured, one.replay))
    return f"{one.verdict}: {left} → {right}"
