"""Forward passes: counts and time by class, equal geometry side by side, durations along an axis, timeline."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.metrics import Population
from dashboard.queries.ranges import Span, capture_span
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

    prefill_requests: int | None = None
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


def geometry(
    store: Store, measured: str, replay: str, population: Population, pass_class: str, per_octave: int = PER_OCTAVE
) -> Result:
    """Cells of equal geometry, most time first: counts, time, means and time shares of both sides.

    ``error`` is replay mean / measured mean - 1, NULL in cells that one side does not hold.
    """
    return store.query(
        "geometry",
        {"per_octave": per_octave, "class": pass_class},
        runs={"measured": measured, "replay": replay},
        population=population,
        row_cap=5000,
    )


def geometry_map(
    store: Store, measured: str, replay: str, population: Population, pass_class: str, per_octave: int = PER_OCTAVE
) -> Result:
    """The shared cells laid on the class's two axes: columns ``x_cell, y_cell, error, measured_passes, replay_passes,
    measured_time_share``.

    ``error`` weighs the cells that fall together by the measured passes, so composition inside a mark does not enter.
    """
    return store.query(
        "geometry_map",
        {"per_octave": per_octave, "class": pass_class},
        runs={"measured": measured, "replay": replay},
        population=population,
        row_cap=5000,
    )


def same_geometry(store: Store, measured: str, replay: str, population: Population) -> Result:
    """By class: share of each side's time in shared cells, and the signed error there weighted by measured passes."""
    return store.query(
        "same_geometry",
        {"per_octave": PER_OCTAVE},
        runs={"measured": measured, "replay": replay},
        population=population,
    )


def cell_passes(
    store: Store,
    run_id: str,
    population: Population,
    pass_class: str,
    cell: Cell,
    per_octave: int = PER_OCTAVE,
    top: int = 200,
) -> Result:
    """The passes of one run inside a cell, in order of time."""
    return store.query(
        "cell_passes",
        {
            "per_octave": per_octave,
            "top": top,
            "prefill_requests": cell.prefill_requests,
            "new_cell": cell.new_cell,
            "prefill_kv_cell": cell.prefill_kv_cell,
            "decode_requests": cell.decode_requests,
            "decode_kv_cell": cell.decode_kv_cell,
            "class": pass_class,
        },
        runs={"run": run_id},
        population=population,
    )


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


def timeline(store: Store, run_id: str, span: Span | None = None, bins: int = 240) -> Result:
    """Time by class, mean batch composition, running and waiting requests per time bin."""
    span = span or capture_span(store, run_id)
    return store.query("pass_timeline", {"bins": bins, **span.params()}, runs={"run": run_id})


def between(store: Store, run_id: str, span: Span, row_cap: int = 2000) -> Result:
    """Single passes that start inside a span; ``truncated`` tells when there are more."""
    return store.query("passes_between", span.params(), runs={"run": run_id}, row_cap=row_cap)


def rank_balance(store: Store, run_id: str, population: Population) -> Result:
    """Passes, tokens and time by worker and rank."""
    return store.query("rank_balance", runs={"run": run_id}, population=population)
