"""Playing a run again with other knobs: what a what-if and every point of a sweep share."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dashboard.jobs.models import model_of
from engine import knobs as knob_table
from engine.bundle import Bundle, find_bundle, measured_runs, slugify
from engine.deployment import preset_folders
from engine.errors import GapscopeError
from engine.replay import knobs_from_run, played_trace, replay
from engine.traces import Trace
from engine.traces.cache import TraceCache

Told = Callable[[str, float | None], None]
"""Called with what was simulated so far in words, and the share that is done where that is known."""
SLUG_CHARS = 60
PRICING = ("timing", "deployment")
"""Groups of knobs that decide which timing model is used."""


def stands_for(run: Bundle, stores: Sequence[Path]) -> Bundle:
    """The measured run whose deployment a run has, where it is in the stores; else the run."""
    named = run.lineage.get("like")
    if run.kind == "measured" or not named:
        return run
    try:
        return find_bundle(stores, named)
    except GapscopeError:
        return run


class Player:
    """Plays one run with changed knobs, as often as asked; its trace and timing models are read once.

    Raises:
        GapscopeError: the run is absent or altered, or its trace is not in the stores.
    """

    def __init__(self, base: str, fit: Sequence[str], stores: Sequence[Path], store: Path) -> None:
        self.base = find_bundle(stores, base)
        self.base.require_intact()
        self._fit, self._stores, self._store = tuple(fit), stores, store
        self._models: dict[str, dict[str, Any] | None] = {}

    @functools.cached_property
    def trace(self) -> Trace:
        """What the run played; a compiled copy is kept in the store that gets the replays."""
        return played_trace(self.base, self._stores, TraceCache(self._store))

    @functools.cached_property
    def _like(self) -> Bundle:
        return stands_for(self.base, self._stores)

    def play(
        self,
        changes: Mapping[str, Any],
        title: str,
        told: Told,
        *,
        slug: str = "what-if",
        point: Mapping[str, Any] | None = None,
    ) -> str:
        """Replay and write the run; its id. ``point`` says what it is a point of.

        Raises:
            GapscopeError: the knobs contradict each other, or nothing prices the passes.
        """
        values = knob_table.resolve(changes, knobs_from_run(self.base))
        model = self.model(values)  # before the trace is read: it is refused sooner
        span_s = values["duration_s"] and values["warmup_s"] + values["duration_s"] + values["grace_s"]
        turns = sum(len(conversation.turns) for play in self.trace.plays for conversation in play.conversations)

        def progress(now_ns: int, wall_s: float, passes: int, requests: int) -> None:
            share = (now_ns / 1e9 + values["warmup_s"]) / span_s if span_s else requests / max(turns, 1)
            words = f"{now_ns / 1e9:,.0f} s simulated in {wall_s:.0f} s, {passes:,} passes, {requests:,} requests"
            told(words, share)

        return replay(
            self.trace,
            values,
            model,
            store=self._store,
            presets=preset_folders(self._stores, self.base.lineage.get("timing")),
            title=title,
            slug=slugify(f"{self.base.run_id.rpartition('-')[0]}-{slug}"[:SLUG_CHARS]),
            like=self._like,
            held=measured_runs(self._stores),
            parent_run=self.base.run_id if self.base.kind == "replay" else None,
            progress=progress,
            point=point,
        )

    def model(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """The timing model of these knobs; a fit takes longer than a replay, so that one is kept."""
        key = priced_by(values)
        if key not in self._models:
            self._models[key] = model_of(self.base, self._stores, self._fit, values)
        return self._models[key]


def priced_by(values: Mapping[str, Any]) -> str:
    """What of the knobs decides which timing model is used, as text."""
    if values["timing"] == "anchor":  # an anchor is judged against more than the others
        return json.dumps(values, sort_keys=True)
    names = [knob.name for knob in knob_table.KNOBS if knob.group in PRICING or knob.name == "host_model"]
    return json.dumps([values[name] for name in names])
