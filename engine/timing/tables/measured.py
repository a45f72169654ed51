"""A table from measured passes, so that others can use what was recorded here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import GapscopeError
from engine.timing.rows import CLASSES, DECODE_ONLY, PREFILL_ONLY, FitSource, PassRows, check_same_regime, read_rows
from engine.timing.tables.identity import identity_columns
from engine.timing.tables.layout import IDENTITY, PLACE, Cell, Point, write_table

POLICY = "median_of_equal_geometry"
"""How a row was measured: not the single sample of a benchmark that visits each geometry once."""
PARTITION = "as_served"
"""How tokens were spread over requests: as they came."""


def measured_cell(sources: Sequence[FitSource], more: Mapping[str, Any] | None = None) -> tuple[Cell, dict[str, Any]]:
    """The passes of ``sources`` that only prefill or only decode, as one deployment, and what became of each pass.

    ``more`` are identity columns that the record does not say. Mixed passes have no rows in the layout; passes of equal
    geometry become their median.

    Raises:
        GapscopeError: see :func:`read_rows` and :func:`check_same_regime`; an unknown column; a run whose record does
            not name its model; no pass of either kind.
    """
    rows, lineage = read_rows(sources)
    check_same_regime(sources, force=False)
    known = {"model_path", *PLACE, *(name for name, _ in IDENTITY)}
    for name in more or {}:
        if name not in known:
            raise GapscopeError(f"{name!r} is no identity column: expected one of {', '.join(sorted(known))}.")
    identity = identity_columns(sources[0].bundle.identity) | dict(more or {})
    if "model_path" not in identity:
        raise GapscopeError(
            f"The record of {sources[0].bundle.run_id} does not name its model: say it (--set model_path=...)."
        )
    kind = rows.kind
    cell = Cell(identity, *points_of(rows), {})
    told = {
        "passes": {name: int((kind == c).sum()) for c, name in enumerate(CLASSES)},
        "sources": [{"run_id": s["run_id"], "phases": s["phases"], "tables": s["tables"]} for s in lineage],
    }
    return cell, told


def points_of(rows: PassRows) -> tuple[tuple[Point, ...], tuple[Point, ...]]:
    """The prefill and the decode points of passes: each geometry with the median of its passes."""
    kind, points = rows.kind, []
    for which, axes in ((PREFILL_ONLY, (0, 1, 2)), (DECODE_ONLY, (3, 4))):
        geometry, number = np.unique(rows.geometry()[kind == which][:, axes], axis=0, return_inverse=True)
        ms = rows.duration_ns[kind == which] / 1e6
        found: list[Point] = []
        for i, (batch, *sums) in enumerate(geometry.tolist()):
            tokens, kv = sums if which == PREFILL_ONLY else (0, sums[0])
            found.append((batch, tokens, kv, round(float(np.median(ms[number.reshape(-1) == i])), 6)))
        points.append(tuple(found))
    return points[0], points[1]


def write_measured(path: Path, sources: Sequence[FitSource], more: Mapping[str, Any] | None = None) -> Cell:
    """:func:`measured_cell` as a table at ``path``; what was written."""
    cell, told = measured_cell(sources, more)
    write_table(path, [cell], policy=POLICY, partition=PARTITION, more={"measured_from": told})
    return cell
