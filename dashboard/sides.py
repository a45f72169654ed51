"""Runs as sides of a pair: each with its label, identity and coverage, seen from the measured run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dashboard.charts.style import ROLES, Role
from dashboard.compare import pair_label
from dashboard.frame import Frame, Side, placed, role
from dashboard.metrics import Estimator, Population, Window
from dashboard.queries import coverage
from dashboard.queries.identity import identity
from dashboard.store import Store


def side_of(store: Store, measured: str, run_id: str, own: Role) -> Side:
    """A run seen from the measured run."""
    label, diffs = pair_label(store, measured, run_id), identity(store, measured, run_id).rows
    return Side(own, store.bundle(run_id), label, diffs, inside(store, run_id))


def inside(store: Store, run_id: str) -> float | None:
    """Share of modelled time that the timing model answered from inside its measured domain."""
    if store.bundle(run_id).kind != "replay":
        return None
    return coverage.shares(store, run_id).inside("time")


def frame_of(
    store: Store,
    measured: str,
    replays: Sequence[str],
    population: Population,
    estimator: Estimator,
    window: Window,
    acknowledged: bool = False,
    link_of: Callable[[], str] = str,
) -> Frame:
    """A frame without a page around it, in the light theme.

    Raises:
        GapscopeError: a run is absent, malformed or altered.
    """
    first = Side(ROLES[0], store.bundle(measured))
    sides = placed(first, [side_of(store, measured, run_id, role(at)) for at, run_id in enumerate(replays)])
    return Frame(*sides, population, estimator, window, acknowledged, False, link_of)
