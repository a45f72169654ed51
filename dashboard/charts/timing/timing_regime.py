"""The regime of a replay's timing beside that of its target, what of it applies, and what was done to it, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from dashboard.charts.answer import Answer, Column
from dashboard.compare.timing_regime import TimingRegime
from dashboard.frame import Side
from engine.timing.anchors.regime import AxisRow

_AS_MEASURED = "the timing is used as it was measured"
_AS_IT_IS = {
    "analytic": "the formula is used as it is, and nothing was measured",
    "fixed": "the constants are used as they were given, and nothing was measured",
}
ORDER = {"differs": 0, "unknown": 1, "same": 2}


def axis_columns(anchor: str = "Timing") -> list[Column]:
    """Columns of rows that :func:`axis_row` makes."""
    return [
        Column("axis", "Axis", pinned=True),
        Column("state", "State"),
        Column("anchor", anchor, help="As it was measured; canonical spelling"),
        Column("target", "Target"),
        Column("rule", "Rule", help="Why the state is what it is"),
    ]


def telling(rows: Iterable[AxisRow]) -> list[AxisRow]:
    """Axes that differ first, then those that are unknown."""
    return sorted(rows, key=lambda row: ORDER[row.state])


def axis_row(row: AxisRow, noun: str = "anchor") -> dict[str, str | None]:
    """An axis as a row of a table; ``noun`` is what was measured."""
    state = "differs, allowed" if row.allowed else row.state
    rule = row.rule.replace("of the anchor", f"of the {noun}")
    return {"axis": row.label, "state": state, "anchor": row.anchor, "target": row.target, "rule": rule}


Found = TimingRegime | None


def together(found: Sequence[tuple[Side, Found]]) -> list[tuple[list[Side], Found]]:
    """Replays whose timing has the same regime, with it; they may stand for different runs, and are drawn once."""
    groups: list[tuple[list[Side], Found]] = []
    for side, regime in found:
        same = next((group for group in groups if regime and group[1] and _same(regime, group[1])), None)
        if same is None:
            groups.append(([side], regime))
        else:
            same[0].append(side)
    return groups


def _same(one: TimingRegime, other: TimingRegime) -> bool:
    return replace(one, target="") == replace(other, target="")


def axes(found: TimingRegime, replay: Side) -> tuple[Answer, str]:
    """Every axis of the regime on both sides, those that differ first; and the distance in words."""
    rows = [
        {"what": held.what, **axis_row(row, "anchor" if found.kind == "anchor" else "timing")}
        for held in found.held
        for row in telling(held.rows)
    ]
    names = ("what", "axis", "state", "anchor", "target", "rule")
    table = pa.table({name: pa.array([row[name] for row in rows], pa.string()) for name in names})
    columns = [Column("what", "Measured as", pinned=True), *axis_columns()]
    told = Answer(
        table,
        "",
        columns,
        {replay.run_id: len(rows)},
        "Read from the record of the replay and of the runs named. Unknown is neither a match nor a mismatch, unless "
        "the rule says so; n: axes compared.",
        empty="The record of this replay names no measurement that its timing rests on.",
    )
    said = [f"{held.what}: {held.distance} of {len(held.rows)} axes differ" for held in found.held]
    words = f"Target: {found.target}. " + ("; ".join(said) + "." if said else "")
    if found.absent:
        words += f" Not in this store, and not compared: {', '.join(found.absent)}."
    return told, words


def parts(found: TimingRegime) -> Answer:
    """Parts of the timing that were accepted or refused, and why."""
    names = ("part", "state", "sentence", "code")
    table = pa.table({name: pa.array([getattr(part, name) for part in found.parts], pa.string()) for name in names})
    columns = [
        Column("part", "Part", pinned=True),
        Column("state", "State"),
        Column("sentence", "Why"),
        Column("code", "Code"),
    ]
    return Answer(table, "", columns, empty="The record of this replay says nothing of accepted parts.")


def changes(found: TimingRegime) -> Answer:
    """Levels, corrections and transport."""
    names = ("what", "value", "basis")
    table = pa.table({name: pa.array([getattr(one, name) for one in found.changes], pa.string()) for name in names})
    columns = [
        Column("what", "What", pinned=True),
        Column("value", "Factor"),
        Column("basis", "From what"),
    ]
    return Answer(
        table,
        "",
        columns,
        empty=f"Nothing was corrected, brought to a level or carried over: {_AS_IT_IS.get(found.kind, _AS_MEASURED)}.",
    )
