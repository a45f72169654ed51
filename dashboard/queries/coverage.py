"""What a replay's pass times rest on: how its timing queries were answered, and who was touched by the rest."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.metrics import Population
from dashboard.queries.passes import PER_OCTAVE
from dashboard.store import Result, Store
from engine.bundle.schema import RESOLUTIONS

INSIDE = ("exact", "interpolated")
PLANES: dict[str, tuple[str, ...]] = {
    "decode_only": ("decode",),
    "mixed": ("prefill", "decode"),
    "prefill_only": ("prefill",),
}
"""The parts of a pass of each class, each a plane of geometry of its own."""
WHOLE = Population("all")


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares by resolution of the timing queries, of the passes (each by its worst) and of modelled time.

    ``geometries`` counts each distinct query once, ``queries`` with repetition.
    Missing resolutions are 0; ``None`` in place of a dict is not recorded.
    """

    geometries: dict[str, float] | None
    queries: dict[str, float] | None
    passes: dict[str, float] | None
    time: dict[str, float] | None
    n_queries: int
    n_passes: int
    results: tuple[Result, ...]
    not_recorded: str | None = None

    def inside(self, of: str) -> float | None:
        """Share answered exactly or by interpolation; ``of`` names a field."""
        shares: dict[str, float] | None = getattr(self, of)
        return None if shares is None else sum(shares[r] for r in INSIDE)


def shares(store: Store, replay: str) -> Shares:
    """Coverage of the whole replay."""
    cells = store.query("coverage_queries", runs={"run": replay})
    passes = store.query("coverage_passes", runs={"run": replay}, population=WHOLE)
    by_query = _sum(cells, "queries")
    by_time = _sum(cells, "modelled_ns")
    by_pass = _sum(passes, "passes")
    return Shares(
        geometries=_share(_sum(cells, "geometries")),
        queries=_share(by_query),
        passes=_share(by_pass),
        time=_share(by_time),
        n_queries=sum(by_query.values()),
        n_passes=sum(by_pass.values()),
        results=(cells, passes),
        not_recorded=cells.not_recorded,
    )


def _sum(result: Result, column: str) -> dict[str, int]:
    sums = dict.fromkeys(RESOLUTIONS, 0)
    if not result.not_recorded:
        for row in result.rows():
            if row["resolution"] is not None:
                sums[row["resolution"]] += row[column] or 0
    return sums


def _share(sums: dict[str, int]) -> dict[str, float] | None:
    total = sum(sums.values())
    return {name: value / total for name, value in sums.items()} if total else None


def cells_outside(store: Store, replay: str, top: int = 200) -> Result:
    """Distinct queries that were not exact or interpolated, those with the most modelled time first."""
    return store.query("coverage_cells", {"top": top}, runs={"run": replay})


def cells(store: Store, replay: str, top: int = 500) -> Result:
    """What rests on each cell of geometry, most modelled time first; a column holds the number of all cells."""
    return store.query("coverage_shares", {"top": top, "per_octave": PER_OCTAVE}, runs={"run": replay})


def sources(store: Store, replay: str) -> Result:
    """Columns ``source, class, resolution, geometries, queries, query_share, modelled_ns, time_share``."""
    return store.query("coverage_sources", runs={"run": replay})


def by_rank(store: Store, replay: str) -> Result:
    """Columns ``worker_id, dp_rank, resolution, passes, time_ns, pass_share, time_share``."""
    return store.query("coverage_ranks", runs={"run": replay}, population=WHOLE)


def query_map(store: Store, replay: str, pass_class: str, plane: str, ranks: int = 1) -> Result:
    """Columns ``resolution, x, y, geometries, queries, modelled_ns, time_share`` of the cells on a plane.

    ``ranks`` share the requests of a query whose KV is that of one of them.
    """
    return store.query(
        "coverage_map",
        {"plane": plane, "per_octave": PER_OCTAVE, "class": pass_class, "ranks": ranks},
        runs={"run": replay},
    )


def domain(
    store: Store, run_id: str, pass_class: str, plane: str, phases: tuple[str, ...] = (), per_octave: int = PER_OCTAVE
) -> Result:
    """Columns ``x, y, passes``: the measured passes of one run in the cells of a plane (no phases: all)."""
    return store.query(
        "coverage_domain",
        {"plane": plane, "per_octave": per_octave, "fit_phases": list(phases), "class": pass_class},
        runs={"run": run_id},
    )


def touched(store: Store, replay: str) -> Result:
    """Columns ``resolution`` (None: any outside), ``requests, request_share, passes, time_ns, of_requests``."""
    return store.query("coverage_touched", runs={"run": replay}, population=WHOLE)


def requests_touched(store: Store, replay: str, population: Population = WHOLE, top: int = 200) -> Result:
    """Requests in passes that were not exact or interpolated, most such time first; a column holds their total."""
    return store.query("coverage_requests", {"top": top}, runs={"run": replay}, population=population)
