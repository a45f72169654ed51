"""What a replay's own timing says about geometries that the replay did not meet."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dashboard.queries import passes
from dashboard.queries.passes import AXES
from dashboard.store import Store
from engine import knobs
from engine.bundle.schema import RESOLUTIONS
from engine.deployment import preset_folders
from engine.errors import GapscopeError
from engine.timing import PassQueries, PassTimeSource, build_timing, model_for

Floats = npt.NDArray[np.float64]
DECIDING = frozenset(knob.name for knob in knobs.KNOBS if knob.group in ("timing", "deployment"))
"""Knobs that decide how a pass is priced."""
INSIDE = tuple(RESOLUTIONS.index(name) for name in ("exact", "interpolated"))


def timing_of(store: Store, run_id: str) -> PassTimeSource | None:
    """The timing that a replay used, rebuilt from its lineage; None where that cannot be done (:func:`rebuilt`)."""
    return rebuilt(store, run_id)[0]


def rebuilt(store: Store, run_id: str) -> tuple[PassTimeSource | None, str]:
    """The timing that a replay used, rebuilt from its lineage; or why it cannot be, as a sentence."""

    def build() -> tuple[PassTimeSource | None, str]:
        lineage = store.bundle(run_id).lineage
        config, timing = lineage.get("config"), lineage.get("timing") or {}
        if not config or (config.get("timing") == "fpm" and not timing.get("model")):
            return None, f"The record of {run_id} holds no timing."
        try:
            model = timing.get("model")
            if config.get("timing") == "measured":
                model = model_for(store.bundle(run_id), store.roots)
            known = {name: value for name, value in config.items() if name in knobs.BY_NAME}
            # A curve is drawn beyond the domain as well, whatever the replay was told to do there.
            values = knobs.resolve(known | {"on_refused": "clamp"} if known.get("on_refused") == "abort" else known)
            # A curve has no order of its own either.
            return build_timing(values | {"measured_match": "geometry"}, model, preset_folders(store.roots, timing)), ""
        except GapscopeError as error:  # a run or a preset that it rests on lies in none of the stores
            return None, str(error)

    found: tuple[PassTimeSource | None, str] = store.remember(("timing", run_id), build)
    return found


def by_timing(store: Store, run_ids: Sequence[str]) -> list[tuple[str, ...]]:
    """Runs grouped by the timing that they have by their records, in the order of their first; one without is alone."""
    found: dict[str, list[str]] = {}
    for run_id in run_ids:
        lineage = store.bundle(run_id).lineage
        timing, config = lineage.get("timing"), lineage.get("config") or {}
        own = {name: value for name, value in config.items() if name in DECIDING}
        key = json.dumps([timing, own], sort_keys=True) if timing and config else run_id
        found.setdefault(key, []).append(run_id)
    return [tuple(group) for group in found.values()]


def price(timing: PassTimeSource, geometry: Mapping[str, Floats]) -> Floats:
    """Durations in ns of passes whose axes (``AXES``) are given as arrays; fractions of tokens are rounded."""
    return timing.explain(_queries(geometry)).total_ns.astype(np.float64)


def _queries(geometry: Mapping[str, Floats]) -> PassQueries:
    return PassQueries(*(np.rint(geometry[name]).astype(np.int64) for name in AXES))


@dataclass(frozen=True, slots=True, eq=False)
class Priced:
    """Measured passes with the duration that a timing model gives their geometry; arrays of equal length."""

    classes: npt.NDArray[np.str_]
    phases: npt.NDArray[np.str_]
    start_s: Floats
    geometry: dict[str, Floats]
    measured_ns: Floats
    model_ns: Floats
    inside: npt.NDArray[np.bool_]  # whether the model answers from inside its measured domain
    sql: str

    @property
    def error(self) -> Floats:
        """Signed error of each pass."""
        return self.model_ns / self.measured_ns - 1

    def level(self, chosen: npt.NDArray[np.bool_]) -> float | None:
        """Signed error of the total time of the chosen passes; None without any."""
        if not chosen.any():
            return None
        return float(self.model_ns[chosen].sum() / self.measured_ns[chosen].sum() - 1)


def priced(store: Store, measured: str, replay: str) -> Priced | None:
    """The passes of ``measured`` at the price of the replay's own timing; None where either is not recorded."""
    timing = timing_of(store, replay)
    if timing is None or "passes" not in store.tables(measured):
        return None

    def make() -> Priced:
        found = passes.samples(store, measured)
        geometry = {name: np.nan_to_num(found.array(name).astype(np.float64)) for name in passes.AXES}
        told = timing.explain(_queries(geometry))
        return Priced(
            found.array("class").astype(str),
            found.array("phase").astype(str),
            found.array("start_ns") / 1e9,
            geometry,
            found.array("duration_ns").astype(np.float64),
            told.total_ns.astype(np.float64),
            np.isin(told.resolution, INSIDE),
            found.sql,
        )

    store.bundle(replay)
    kept: Priced = store.remember(("priced", measured, replay), make)
    return kept
