"""Anchors and tables of the store, and which of them apply to a run and why."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dashboard.charts.answer import Answer, Column
from dashboard.charts.timing.timing_regime import axis_columns, axis_row, telling
from dashboard.frame import Side
from dashboard.store import Store
from engine.bundle import Bundle
from engine.errors import GapscopeError
from engine.timing.anchors import Ranked, index, ranked
from engine.timing.anchors.selection import target_of
from engine.timing.tables import find_table, read_cells, table_names
from engine.timing.tables.identity import differences


def kept(store: Store, run: Side) -> tuple[Answer, list[Ranked]]:
    """Anchors and tables of the store, nearest first, with what of each applies to a run and why the rest does not."""
    held = tuple((root, entry.name, entry.digest) for root in store.roots for entry in index(root))
    anchors: list[Ranked] = store.remember(
        ("ranked", run.run_id, held), lambda: ranked(store.roots, target_of(run.bundle))
    )
    rows: list[dict[str, Any]] = [_anchor_row(one) for one in anchors]
    for name in table_names(store.roots):
        rows += _table_rows(store, name, run.bundle)
    names = ("name", "kind", "decode", "prefill", "distance", "confidence", "why", "warnings")
    columns = [
        Column("name", "Name", pinned=True),
        Column("kind", "Kind"),
        Column("decode", "Decode"),
        Column("prefill", "Prefill"),
        Column("distance", "Axes that differ", "%d"),
        Column(
            "confidence",
            "Confidence",
            help="high; interp: asked beyond the measured batches, or carried to other widths by formula; escalate: "
            "another regime, a difference allowed by name, or other widths without the formula",
        ),
        Column("why", "Why it does not apply, or not in whole"),
        Column("warnings", "Warnings"),
    ]
    types = {"distance": pa.int64()}
    table = pa.table({name: pa.array([row[name] for row in rows], types.get(name, pa.string())) for name in names})
    told = Answer(
        table,
        "",
        columns,
        {run.run_id: len(rows)},
        "Nearest first. An anchor or a table applies only inside its regime; unknown is skipped unless an axis says "
        "otherwise. n: anchors and tables of the store.",
        empty="The store holds neither anchors nor tables: `gapscope anchor build` and `gapscope table keep` add some.",
    )
    return told, anchors


def _anchor_row(one: Ranked) -> dict[str, Any]:
    verdict = one.acceptance
    prefill = "applies" if verdict.prefill_accepted else "not measured" if verdict.prefill == "none" else "refused"
    whys = [
        *verdict.refusals,
        *(verdict.prefill_refusals if verdict.prefill != "none" else ()),
        *verdict.packed_refusals,
    ]
    return {
        "name": one.anchor.name,
        "kind": "anchor",
        "decode": "applies" if verdict.accepted else "refused",
        "prefill": prefill,
        "distance": verdict.distance,
        "confidence": verdict.confidence,
        "why": " ".join(finding.sentence for finding in whys),
        "warnings": " ".join(finding.sentence for finding in verdict.warnings),
    }


def _table_rows(store: Store, name: str, run: Bundle) -> list[dict[str, Any]]:
    empty = {"kind": "table", "confidence": None, "warnings": ""}
    try:
        cells = read_cells(find_table(name, store.roots)[0])
    except GapscopeError as error:
        return [{**empty, "name": name, "decode": "refused", "prefill": "refused", "distance": None, "why": str(error)}]
    rows = []
    for number, cell in enumerate(cells, 1):
        found = differences(cell.identity, target_of(run))
        state = "refused" if found else "applies"
        rows.append(
            {
                **empty,
                "name": name if len(cells) == 1 else f"{name}#{number}",
                "decode": state if cell.decode else "not measured",
                "prefill": state if cell.prefill else "not measured",
                "distance": len(found),
                "why": "; ".join(found),
            }
        )
    return rows


def axes_of(one: Ranked, run: Side) -> Answer:
    """Every axis of one anchor against the run."""
    rows = [axis_row(row) for row in telling(one.acceptance.rows)]
    names = ("axis", "state", "anchor", "target", "rule")
    table = pa.table({name: pa.array([row[name] for row in rows], pa.string()) for name in names})
    return Answer(table, "", axis_columns("Anchor"), {run.run_id: len(rows)}, "n: axes compared.")
