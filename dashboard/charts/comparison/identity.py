"""The identity records side by side, and the memory ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dashboard.charts.answer import Answer, Column
from dashboard.compare.sameness import Line, sameness
from dashboard.frame import Frame, escape
from dashboard.queries.identity import said_differing
from engine.identity import FIELDS

MEMORY = ("memory_weights_bytes", "memory_kv_bytes", "memory_activations_bytes", "memory_graphs_bytes")
COUNTS = "Regime fields decide what a pass costs; observed ones are what a run showed and decide nothing"


def verdicts(frame: Frame, found: Sequence[Line]) -> list[str]:
    """For each candidate, in Markdown, whether it is the same configuration as the baseline."""
    marks = {"refused": ":material/close:", "not shown": ":material/question_mark:", "same": ":material/check:"}
    told = []
    for place, side in enumerate(frame.replays):
        one = sameness(found, place)
        regime = sum(line.kind == "regime" for line in one.differing)
        more = f" **{regime}** of them define the regime." if regime else ""
        whole = f"By fields of the record, as strips count: {said_differing(side.diffs)}, {side.unknown} unknown."
        told.append(
            f"{marks[one.state]} :{side.role.word}[{side.role.glyph} {side.role.name}] is {escape(one.words)}.{more} "
            f":small[{escape(whole)}]"
        )
    return told


def fields(frame: Frame, found: Sequence[Line], empty: str = "") -> Answer:
    """One row per field and one column per run; where a value was read comes last."""
    names = [side.role.name for side in frame.sides]
    rows = []
    for line in found:
        row: dict[str, Any] = {"group": line.group, "field": line.label, "counts_as": line.kind}
        row |= {name: line.said(place) for place, name in enumerate(names)}
        row |= {
            f"{name}_source": field.source if field else None for name, field in zip(names, line.fields, strict=True)
        }
        rows.append(row)
    headers = ["group", "field", "counts_as", *names, *(f"{name}_source" for name in names)]
    table = pa.table({name: pa.array([row[name] for row in rows], pa.string()) for name in headers})
    wide = 300 if len(names) < 3 else 220
    columns = [
        Column("field", "Field", pinned=True, width=wide),  # of settings of one field only the ends differ
        Column("counts_as", "Counts as", width=95, help=COUNTS),
        *(Column(name, name.capitalize(), width=max(125, (880 - wide) // len(names))) for name in names),
        Column("group", "Group", width=130),
        *(Column(f"{name}_source", f"Source, {name}", width=220) for name in names),
    ]
    n = {side.run_id: sum(1 for _ in side.bundle.identity) for side in frame.sides}
    words = (
        f"A value of a candidate that differs from that of the {names[0]} run says so; unknown is neither a match nor "
        f"a mismatch. n: fields recorded. Read from run.json of each run. {COUNTS}."
    )
    return Answer(table, "", columns, n, words, empty=empty or "There is none.")


def memory(frame: Frame) -> tuple[Answer, bool]:
    """Bytes by component, never totals alone; and whether any side recorded one."""
    rows = []
    for name in MEMORY:
        row: dict[str, Any] = {"component": FIELDS["capacity"][name].label.removeprefix("memory: ")}
        for side in frame.sides:
            value = side.bundle.identity.value("capacity", name)
            row[side.role.name] = value / 2**20 if isinstance(value, (int, float)) else None
        rows.append(row)
    sides = [side.role.name for side in frame.sides]
    table = pa.table(
        {
            name: pa.array([r[name] for r in rows], pa.float64() if name in sides else None)
            for name in ("component", *sides)
        }
    )
    columns = [
        Column("component", "Component"),
        *(Column(name, f"{name.capitalize()} (MiB)", "%.1f") for name in sides),
    ]
    return Answer(table, "", columns), any(row[name] is not None for row in rows for name in sides)
