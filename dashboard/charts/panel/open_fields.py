"""The identity fields that the strips count, of all runs side by side: what differs, and what a side does not know."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dashboard.frame import Frame
from engine.identity import GROUPS, FieldDiff


def open_fields(frame: Frame) -> pa.Table:
    """One row per field that differs or is unknown for any candidate, and one column per run; differing ones first.

    A candidate's value that differs says so. What nobody knows is said to be unknown on both sides.
    """
    order: dict[tuple[str, str], dict[int, FieldDiff]] = {}
    for place, side in enumerate(frame.replays):
        for diff in side.diffs:
            order.setdefault((diff.group, diff.label), {})[place] = diff
    rows = []
    for (group, label), diffs in order.items():
        if not any(_open(diff) for diff in diffs.values()):
            continue
        first = next(iter(diffs.values()))
        row = {"field": f"{GROUPS.get(group, group)}: {label}", "regime": "yes" if first.regime else ""}
        row[frame.measured.role.name] = _plain(first.left)
        for place, side in enumerate(frame.replays):
            row[side.role.name] = _said(diffs[place]) if place in diffs else "unknown"
        rows.append((any(diff.state == "differs" for diff in diffs.values()), row))
    rows.sort(key=lambda one: not one[0])
    names = ["field", "regime", *(side.role.name for side in frame.sides)]
    return pa.table({name: pa.array([row[name] for _, row in rows], pa.string()) for name in names})


def _open(diff: FieldDiff) -> bool:
    return diff.state == "differs" or diff.state.startswith("unknown")


def _said(diff: FieldDiff) -> str:
    """A candidate's value, with what it is beside the measured one."""
    value = _plain(diff.right)
    return f"differs: {value}" if diff.state == "differs" else value


def _plain(field: Any) -> str:
    """The value of a field as text; what is not known says so."""
    value = getattr(field, "value", field)
    return "unknown" if value is None else str(value)
