"""The identity records side by side, and the memory ledger."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dashboard.charts.answer import Answer, Column
from dashboard.frame import Frame
from engine.identity import FIELDS, GROUPS, FieldDiff

MEMORY = ("memory_weights_bytes", "memory_kv_bytes", "memory_activations_bytes", "memory_graphs_bytes")
STATES = {
    "differs": "differs",
    "unknown_left": "unknown: measured",
    "unknown_right": "unknown: replay",
    "unknown_both": "unknown: both",
    "same": "same",
    "not_applicable": "does not apply",
}


def diff(frame: Frame, every: bool) -> Answer:
    """Field by field on all sides; differing first, then unknown, then the rest where ``every`` is asked for."""
    first = frame.replays[0]
    others = [{(d.group, d.field): d for d in side.diffs} for side in frame.replays]
    rows: list[dict[str, Any]] = []
    for field in first.diffs:
        states = [found[field.group, field.field].state for found in others if (field.group, field.field) in found]
        if not every and all(state in ("same", "not_applicable", "unknown_both") for state in states):
            continue
        row = {
            "group": GROUPS.get(field.group, field.group),
            "field": field.label,
            "state": STATES[states[0]],
            "regime": "yes" if field.regime else "",
            "measured": _said(field, "left"),
            "measured_source": field.left.source if field.left else None,
        }
        for side, found in zip(frame.replays, others, strict=True):
            own = found.get((field.group, field.field))
            row[side.role.name] = _said(own, "right") if own else None
            row[f"{side.role.name}_source"] = own.right.source if own and own.right else None
        rows.append(row)
    sides = [side.role.name for side in frame.replays]
    names = [
        "group",
        "field",
        "state",
        "regime",
        "measured",
        *sides,
        "measured_source",
        *(f"{s}_source" for s in sides),
    ]
    table = pa.table({name: [row[name] for row in rows] for name in names})
    columns = [
        Column("group", "Group", width=150),
        Column("field", "Field", pinned=True, width=180),
        Column("state", "State", width=110),
        Column("regime", "Regime", width=70, help="A difference here makes the pair not like for like"),
        Column("measured", "Measured", width=200),
        *(Column(name, name.capitalize(), width=200) for name in sides),
        Column("measured_source", "Source, measured", width=220),
        *(Column(f"{name}_source", f"Source, {name}", width=220) for name in sides),
    ]
    n = {side.run_id: sum(1 for _ in side.bundle.identity) for side in frame.sides}
    words = "Unknown is neither a match nor a mismatch. n: fields recorded. Read from run.json of both runs."
    return Answer(table, "", columns, n, words, empty="Every field that a side knows is known on both and the same.")


def _said(field: FieldDiff, side: str) -> str | None:
    found = getattr(field, side)
    return None if found is None or found.value is None else str(found.value)


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
