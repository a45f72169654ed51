"""Several sources of pass times beside the measured passes, hold-out errors, and which anchors apply to a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from dashboard.charts import figures, style
from dashboard.charts.answer import Answer, Column
from dashboard.charts.figures import Axis, Figure, Series
from dashboard.charts.passes.passes import WORDS
from dashboard.charts.style import TOOLS, Role
from dashboard.frame import Side
from dashboard.queries import passes
from dashboard.timing_sources import Asked, ErrorRow, Flags, MeasuredPasses, answers, error_rows

BINS = 24
GRID = 48
FEWEST = 3
"""A bin of fewer passes is not drawn, unless there are hardly any: one odd pass is no level."""
BATCHES = 3
"""Batches of decodes that have a panel each: those with most passes."""
FURTHER = tuple(TOOLS[5:])
"""Roles of the sources that no replay of the pair bar brings."""
Drawn = Sequence[tuple[Role, Asked]]


def role_of(index: int, name: str) -> Role:
    """The role of a further source."""
    return replace(FURTHER[index % len(FURTHER)], name=name)


def in_phases(measured: MeasuredPasses, phases: Collection[str]) -> Flags:
    """The passes of these phases."""
    return np.isin(measured.phases, sorted(phases))


def shared_support(measured: MeasuredPasses, chosen: Flags, sources: Drawn) -> tuple[Flags, str]:
    """Passes that every source covers, and in words what was left out and because of whom."""
    shared = chosen.copy()
    said = []
    total = float(measured.duration_ns[chosen].sum()) or 1.0
    for _, source in sources:
        assert source.covered is not None
        shared &= source.covered
        left = chosen & ~source.covered
        if left.any():
            share = style.percent(float(measured.duration_ns[left].sum()) / total)
            said.append(f"{source.name} does not cover {int(left.sum()):,} of them ({share} of the time)")
    words = f"{int(shared.sum()):,} of {int(chosen.sum()):,} measured passes are covered by every source and compared."
    return shared, words + (f" Left out: {'; '.join(said)}." if said else "")


def decode_curves(
    measured: MeasuredPasses, chosen: Flags, sources: Drawn, role: Role, log: bool, dark: bool
) -> tuple[list[dict[str, Any]], Figure]:
    """Decode-only passes over KV per request, a panel per batch; lines only where every source covers the geometry."""
    of_class = chosen & (measured.classes == "decode_only")
    batch = measured.geometry["decode_requests"]
    sizes, counts = np.unique(batch[of_class], return_counts=True)
    most = sorted(sizes[np.argsort(-counts, kind="stable")][:BATCHES].tolist())
    rows: list[dict[str, Any]] = []
    panels = []
    for size in most:
        mine = of_class & (batch == size)
        x = measured.geometry["decode_kv_tokens"][mine] / size
        grid = np.linspace(x.min(), x.max(), GRID)
        nothing = np.zeros(GRID)
        geometry = dict.fromkeys(passes.AXES, nothing) | {
            "decode_requests": np.full(GRID, size),
            "decode_kv_tokens": grid * size,
        }
        told = [(own, source.name, *answers(source.timing, geometry)) for own, source in sources if source.timing]
        everywhere = np.logical_and.reduce([covered for *_, covered in told]) if told else np.zeros(GRID, bool)
        curves = [Series(own, name, grid, np.where(everywhere, ns / 1e6, np.nan)) for own, name, ns, _ in told]
        title = f"decode, {size:,.0f} request{'s' if size != 1 else ''}"
        panels.append(
            (title, _panel(x, measured.duration_ns[mine], curves, role, "KV per request (tokens)", log, dark))
        )
        rows += _rows(title, x, measured.duration_ns[mine], curves)
    return rows, _together(panels)


def prompt_curves(
    measured: MeasuredPasses, chosen: Flags, shared: Flags, sources: Drawn, role: Role, log: bool, dark: bool
) -> tuple[list[dict[str, Any]], Figure]:
    """Passes with prompts over their new tokens: medians of what was measured, and of what each source says of the very
    passes that all of them cover."""
    rows: list[dict[str, Any]] = []
    panels = []
    for name in ("prefill_only", "mixed"):
        mine = chosen & (measured.classes == name)
        if not mine.any():
            continue
        x = measured.geometry["new_tokens"]
        edges = _edges(x[mine])
        curves = []
        for own, source in sources:
            assert source.model_ns is not None
            at, ms = _medians(x[mine & shared], source.model_ns[mine & shared], edges)[:2]
            curves.append(Series(own, source.name, at, ms))
        title = f"{WORDS[name]} passes"
        panels.append((title, _panel(x[mine], measured.duration_ns[mine], curves, role, "new tokens", log, dark)))
        rows += _rows(title, x[mine], measured.duration_ns[mine], curves)
    return rows, _together(panels)


def curve_answer(rows: Sequence[Mapping[str, Any]], run: Side, n: int, sql: str, what: str) -> Answer:
    """The rows behind curves: bins of measured passes, and points of each source."""
    names = ("panel", "of", "x", "ms", "passes")
    columns = [
        Column("panel", "Panel", pinned=True),
        Column("of", "Of"),
        Column("x", what, "%.0f"),
        Column("ms", "Duration (ms)", "%.3f"),
        Column("passes", "Passes", "%d"),
    ]
    words = (
        "Measured: p50 of bins of equal width, of at least three passes where there are many. A line is drawn where "
        "every chosen source covers the geometry: exact, interpolated or analytic."
    )
    table = pa.table({name: [row[name] for row in rows] for name in names}) if rows else pa.table({})
    return Answer(table, sql, columns, {run.run_id: n}, words, empty="No such pass was measured in this phase.")


def errors(measured: MeasuredPasses, chosen: Flags, sources: Drawn, shared: Flags, run: Side) -> Answer:
    """Errors of each source on the passes that all of them cover."""
    found: list[ErrorRow] = error_rows(measured, chosen, [source for _, source in sources], shared)
    names = ("source", "pass_class", "passes", "mean", "median", "weighted", "total", "left_out", "left_out_share")
    table = pa.table({name: [getattr(row, name) for row in found] for name in names}) if found else pa.table({})
    columns = [
        Column("source", "Source", pinned=True),
        Column("pass_class", "Class"),
        Column("passes", "Passes compared", "%d"),
        Column("median", "Median error", "percent"),
        Column("mean", "Mean error (MAPE)", "percent"),
        Column("weighted", "Weighted by time (WAPE)", "percent"),
        Column("total", "Error of the total", "percent"),
        Column("left_out", "Not covered by it", "%d"),
        Column("left_out_share", "Time not covered", "percent"),
    ]
    words = (
        "Each measured pass is priced at its own geometry. Errors are absolute and relative to the pass; that of the "
        "total time has a sign. A source that was fitted on these very passes is judged on what it has seen."
    )
    return Answer(table, measured.sql, columns, {run.run_id: int(shared.sum())}, words)


def _edges(x: np.ndarray) -> np.ndarray:
    return np.linspace(float(x.min()), float(x.max()) + 1e-9, BINS + 1)


def _medians(x: np.ndarray, ns: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean place, median milliseconds and number of each bin that holds enough passes."""
    bins = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, len(edges) - 2)
    count = np.bincount(bins, minlength=len(edges) - 1)
    held = np.flatnonzero(count >= (FEWEST if len(x) >= FEWEST * BINS else 1))
    at = np.array([x[bins == one].mean() for one in held])
    return at, np.array([np.median(ns[bins == one]) / 1e6 for one in held]), count[held].astype(np.float64)


def _panel(
    x: np.ndarray, ns: np.ndarray, curves: Sequence[Series], role: Role, what: str, log: bool, dark: bool
) -> Figure:
    at, ms, count = _medians(x, ns, _edges(x))
    points = [(role, "measured p50", at, ms, count)]
    return figures.cloud(points, curves, Axis(what), Axis("pass duration, ms", log=log), dark=dark)


def _rows(title: str, x: np.ndarray, ns: np.ndarray, curves: Sequence[Series]) -> list[dict[str, Any]]:
    at, ms, count = _medians(x, ns, _edges(x))
    found = [
        {"panel": title, "of": "measured p50", "x": a, "ms": m, "passes": int(c)}
        for a, m, c in zip(at.tolist(), ms.tolist(), count.tolist(), strict=True)
    ]
    for curve in curves:
        found += [
            {"panel": title, "of": curve.name, "x": a, "ms": m, "passes": None}
            for a, m in zip(curve.x.tolist(), curve.y.tolist(), strict=True)
            if np.isfinite(m)
        ]
    return found


def _together(panels: list[tuple[str, Figure]]) -> Figure:
    if not panels:
        return {"data": [], "layout": {}}
    return figures.small_multiples(panels, columns=len(panels), height=300, gap=0.09)
