"""Forward passes: counts and time by class, equal geometry side by side, durations along an axis, timeline."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow.compute as pc

from dashboard.metrics import Population
from dashboard.queries.ranges import Span, capture_span, timed
from dashboard.store import Result, Store

PER_OCTAVE = 2
"""Cells of token counts per factor of two: a cell spans a factor of 1.41."""

AXES: dict[str, str] = {
    "prefill_requests": "prefill requests",
    "new_tokens": "new tokens",
    "prefill_kv_tokens": "prefill KV read (tokens)",
    "decode_requests": "decode requests",
    "decode_kv_tokens": "decode KV (tokens)",
}
CLASS_AXES: dict[str, tuple[str, str]] = {
    "prefill_only": ("new_tokens", "prefill_kv_tokens"),
    "decode_only": ("decode_kv_tokens", "decode_requests"),
    "mixed": ("new_tokens", "decode_kv_tokens"),
}
"""The two axes that say most about a class, for maps."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of pass geometry; None is any. Token cells count half octaves, -1 is zero tokens."""

    new_cell: int | None = None
    prefill_kv_cell: int | None = None
    decode_requests: int | None = None
    decode_kv_cell: int | None = None


def cell_bounds(cell: int, per_octave: int = PER_OCTAVE) -> tuple[float, float]:
    """Token counts of a cell: low inside, high outside; cell -1 holds zero tokens only."""
    return (0.0, 0.0) if cell < 0 else (2 ** (cell / per_octave), 2 ** ((cell + 1) / per_octave))


def classes(store: Store, run_id: str, population: Population) -> Result:
    """Columns ``class, passes, time_ns, pass_share, time_share, mean_ns, p50_ns, p99_ns``; idle has no share."""
    return store.query("pass_classes", runs={"run": run_id}, population=population)


def geometry_map(store: Store, measured: str, replay: str, population: Population) -> Result:
    """Cells on the two axes of each class: columns ``class, x_cell, y_cell, error, duration_ns`` (what the error is
    worth in the replay's passes) and passes, time and time share of both sides; shares are of all its pass time.

    ``error`` weighs the finer cells that fall together by the measured passes, so composition inside a mark does not
    enter; it is NULL where the two sides hold no equal geometry.
    """
    return _equal_geometry(store, measured, replay, population, whole=False)


def same_geometry(store: Store, measured: str, replay: str, population: Population) -> Result:
    """By class: the gap in pass time, ``gap_ns = count_ns + geometry_ns + duration_ns``, and how much of each side's
    time lies in shared cells, with the signed error there weighted by measured passes."""
    return _equal_geometry(store, measured, replay, population, whole=True)


def _equal_geometry(store: Store, measured: str, replay: str, population: Population, whole: bool) -> Result:
    found = store.query(
        "same_geometry",
        {"per_octave": PER_OCTAVE},
        runs={"measured": measured, "replay": replay},
        population=population,
    )
    if found.not_recorded:
        return found
    axis = found.table.column("x_cell")
    return replace(found, table=found.table.filter(pc.is_null(axis) if whole else pc.is_valid(axis)))


def cell_passes(
    store: Store, run_id: str, population: Population, pass_class: str, cell: Cell, top: int = 200
) -> Result:
    """The passes of one run inside a cell, in order of time, with the source-turns that were in them."""
    return store.query(
        "cell_passes",
        {
            "per_octave": PER_OCTAVE,
            "top": top,
            "new_cell": cell.new_cell,
            "prefill_kv_cell": cell.prefill_kv_cell,
            "decode_requests": cell.decode_requests,
            "decode_kv_cell": cell.decode_kv_cell,
            "class": pass_class,
        },
        runs={"run": run_id},
        population=population,
    )


def samples(store: Store, run_id: str, most: int = 50_000) -> Result:
    """Single passes of all phases with geometry (``AXES``) and duration; evenly thinned where there are more than
    ``most``."""
    every = max(-(-(store.bundle(run_id).rows("passes") or 0) // most), 1)
    return store.query("pass_samples", {"every": every}, runs={"run": run_id}, row_cap=None, keep=False)


def axis_limit(store: Store, run_ids: tuple[str, ...], population: Population, pass_class: str, axis: str) -> int:
    """The largest value on an axis over several runs, so that their bins agree; 0 without passes."""
    limits = [
        store.query("geometry_limits", {"class": pass_class}, runs={"run": run_id}, population=population)
        for run_id in run_ids
    ]
    return max((limit.one()[axis] or 0 for limit in limits if not limit.not_recorded), default=0)


def duration_curve(
    store: Store, run_id: str, population: Population, pass_class: str, axis: str, x_max: int, bins: int = 40
) -> Result:
    """Columns ``bin, passes, x, mean_ns, p10_ns, p50_ns, p90_ns`` along ``decode_kv_tokens``, ``new_tokens``,
    ``prefill_kv_tokens`` or ``decode_requests``, and the mean of every axis (``AXES``) in the bin."""
    return store.query(
        "duration_curve",
        {"axis": axis, "x_max": x_max, "bins": bins, "class": pass_class},
        runs={"run": run_id},
        population=population,
    )


def timeline(store: Store, run_id: str, span: Span | None = None, bins: int = 240, rank: str | None = None) -> Result:
    """Time by class, mean batch composition, running and waiting requests per time bin; of one of ``ranks``, or all."""
    params = {"bins": bins, "rank": rank, **(span or capture_span(store, run_id)).params()}
    return timed(store, run_id, "passes", lambda: store.query("pass_timeline", params, runs={"run": run_id}))


def between(store: Store, run_id: str, span: Span, row_cap: int = 2000, rank: str | None = None) -> Result:
    """Single passes that start inside a span, of one of ``ranks`` or all; ``truncated`` tells when there are more."""
    return timed(
        store,
        run_id,
        "passes",
        lambda: store.query("passes_between", {"rank": rank, **span.params()}, runs={"run": run_id}, row_cap=row_cap),
    )


def ranks(store: Store, run_id: str) -> list[str]:
    """The workers and ranks that the run recorded passes of, as ``worker/rank``; none where it recorded none."""
    found = store.query("ranks", runs={"run": run_id})
    return [] if found.not_recorded else found.table.column("rank").to_pylist()


def rank_balance(store: Store, run_id: str, population: Population) -> Result:
    """Passes, tokens and time by worker and rank; of the steps taken together: ``slowest_steps, slowest_share,
    waited_ns``."""
    return store.query("rank_balance", runs={"run": run_id}, population=population)


def rank_steps(store: Store, run_id: str, population: Population, span: Span, bins: int = 200) -> Result:
    """Steps that ranks take together over time: ``time_ns, steps, longest_ns, spread_ns, widest_ns, above_mean_ns,
    mostly_slowest``; no rows where none are."""
    params = {"bins": bins, **span.params()}
    return timed(
        store,
        run_id,
        "passes",
        lambda: store.query("rank_steps", params, runs={"run": run_id}, population=population),
    )
