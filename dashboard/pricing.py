"""What a replay's own timing says about geometries that the replay did not meet."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from dashboard.queries.passes import AXES
from dashboard.store import Store
from engine import knobs
from engine.deployment import preset_folders
from engine.errors import GapscopeError
from engine.timing import PassQueries, PassTimeSource, build_timing, model_for


def timing_of(store: Store, run_id: str) -> PassTimeSource | None:
    """The timing that a replay used, rebuilt from its lineage; None where the run does not record it."""

    def build() -> PassTimeSource | None:
        lineage = store.bundle(run_id).lineage
        config, timing = lineage.get("config"), lineage.get("timing") or {}
        if not config or (config.get("timing") == "fpm" and not timing.get("model")):
            return None
        model = timing.get("model")
        if config.get("timing") == "measured":
            try:
                model = model_for(store.bundle(run_id), store.roots)
            except GapscopeError:
                return None  # the measured run lies in none of the stores
        known = {name: value for name, value in config.items() if name in knobs.BY_NAME}
        # A curve is drawn beyond the domain as well, whatever the replay was told to do there.
        values = knobs.resolve(known | {"on_refused": "clamp"} if known.get("on_refused") == "abort" else known)
        # A curve has no order of its own either.
        return build_timing(values | {"measured_match": "geometry"}, model, preset_folders(store.roots))

    found: PassTimeSource | None = store.remember(("timing", run_id), build)
    return found


def price(timing: PassTimeSource, geometry: Mapping[str, npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """Durations in ns of passes whose axes (``AXES``) are given as arrays; fractions of tokens are rounded."""
    axes = [np.rint(geometry[name]).astype(np.int64) for name in AXES]
    return timing.explain(PassQueries(*axes)).total_ns.astype(np.float64)
