"""Replays of the stores that a point would only repeat: of the same knobs, trace and timing, by the same program."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dashboard.jobs.playing import stands_for
from engine import knobs as knob_table
from engine.bundle import Bundle, find_bundle, list_bundles, open_bundle
from engine.deployment import preset_folders
from engine.errors import GapscopeError
from engine.replay import knobs_from_run, resolve_host_terms
from engine.replay.identity import CARRIED, package_version, recorded_config
from engine.timing import build_timing
from engine.traces import CHOICES

AS_FITTED = frozenset(
    ("dispatch_lag_ms", "request_latency_ms", "response_latency_ms", "host_model", *knob_table.HOST_TERMS)
)
"""Knobs that the timing model may set."""
FPM = "fpm"
Sound = Callable[[Bundle], bool]
Model = Callable[[Mapping[str, Any]], Mapping[str, Any] | None]


class Standing:
    """The replays among which a point of a sweep is looked for before it is played.

    Args:
        base: the run that points are played from.
        stores: where presets and the run that the base stands for lie.
        replays: those of the stores; a rung of a ladder is none of them.
        model: the timing model of knobs, as the one has it that would play the point.
        sound: whether the files of one are as they were sealed; asked of one that is found.
        fit: passes that the model is fitted on, as ``RUN[:PHASE,...]``: a replay that rests on others needs no fit to
            be told apart, and a fit takes seconds.
    """

    def __init__(
        self,
        base: Bundle,
        stores: Sequence[Path],
        replays: Iterable[Bundle],
        model: Model,
        sound: Sound,
        fit: Sequence[str] = (),
    ) -> None:
        self._base, self._model, self._sound = base, model, sound
        self._fitted_on = sorted(find_bundle(stores, text.partition(":")[0]).run_id for text in fit)
        self._told = knobs_from_run(base)
        self._presets = preset_folders(stores, base.lineage.get("timing"))
        like = stands_for(base, stores).run_id
        self._replays = [one for one in replays if self._is_like(one, like)]

    def _is_like(self, replay: Bundle, like: str) -> bool:
        lineage = replay.lineage
        return (
            replay.kind == "replay"
            and not lineage.get("ladder")
            and isinstance(lineage.get("config"), Mapping)
            and lineage.get("like") == like
            and replay.identity.value("client", "version") == package_version()
            and all(_trace(replay, name) == _trace(self._base, name) for name in ("digest", *CHOICES))
        )

    def find(self, changes: Mapping[str, Any]) -> str | None:
        """The replay that playing the base with these changes would repeat; None where there is none."""
        try:
            values = knob_table.resolve(changes, self._told)
            wanted = _decided(recorded_config(values))
            near = [one for one in self._replays if _decided(one.lineage["config"]) == wanted]
            return next((one.run_id for one in near if self._repeats(one, values) and self._sound(one)), None)
        except GapscopeError:
            return None  # whoever plays the point says what is wrong

    def _repeats(self, replay: Bundle, values: Mapping[str, Any]) -> bool:
        """Whether its timing is the one that these knobs would have, to the last figure."""
        if self._fitted_on and values["timing"] == FPM and _fitted_on(replay) != self._fitted_on:
            return False
        model = self._model(values)
        carried = model if model and values["timing"] in CARRIED else None
        timing = build_timing(values, model, self._presets).describe() | {"model": carried}
        config = recorded_config(resolve_host_terms(values, model))
        return _plain(timing) == replay.lineage.get("timing") and _plain(config) == replay.lineage["config"]


def in_folders(stores: Sequence[Path]) -> list[Bundle]:
    """Every run of the stores that can be opened; of the others the Runs page says what is wrong with them."""
    found = []
    for path in (path for root in stores for path in list_bundles(root)):
        try:
            found.append(open_bundle(path))
        except GapscopeError:
            continue
    return found


def _fitted_on(replay: Bundle) -> list[str]:
    """The runs whose passes its timing model was fitted on."""
    return sorted(one["run_id"] for one in replay.identity.value("timing", "fitted_on") or ())


def _trace(bundle: Bundle, name: str) -> Any:
    return bundle.identity.value("trace", name)


def _decided(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in AS_FITTED}


def _plain(record: Any) -> Any:
    """As a record is read from a file."""
    return json.loads(json.dumps(record))
