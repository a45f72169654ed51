"""What each rung takes from the measured run, on top of what the rungs before it took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from engine import knobs as knob_table
from engine.bundle import Bundle
from engine.deployment import preset_folders
from engine.errors import GapscopeError
from engine.ladder.recording import recorded_batches, recorded_turns
from engine.ladder.rungs import BUILT
from engine.replay import knobs_from_run, played_trace
from engine.serving.members import Members
from engine.timing import build_timing, measured_model, model_for
from engine.timing.contract import PassTimeSource
from engine.traces.tree import Trace
from engine.workload.hash_ids import block_keys_of
from engine.workload.recorded import AS_RECORDED, RecordedLoad

PHASE_KNOBS = ("warmup_s", "duration_s", "grace_s")
ENOUGH = 0.5
"""Share of the measured requests that the trace must have, or the measured arrivals say nothing."""
MEASURED_DURATIONS = {
    "timing": "measured",
    "pass_scale": 1.0,
    "between_passes_ms": -1.0,
    "on_refused": "clamp",
    "correction": "",
}


@dataclass(frozen=True)
class Layers:
    """What a rung is made of.

    ``values`` are complete knobs and ``timing`` what they build from ``model``. ``taken`` says in words what comes
    from the measurement, ``left`` counts in words what of it could not be taken. ``load`` are the measured requests,
    ``forced`` says that they reuse as measured, ``batches`` who is in each batch; None and False: simulated.
    """

    values: dict[str, Any]
    timing: PassTimeSource
    model: Mapping[str, Any] | None
    taken: tuple[str, ...] = ()
    left: Counter[str] = field(default_factory=Counter)
    load: RecordedLoad | None = None
    forced: bool = False
    batches: Members | None = None


class Pair:
    """A prediction and the run that it predicts.

    Raises:
        GapscopeError: the two make no ladder.
    """

    def __init__(self, measured: Bundle, base: Bundle, stores: Sequence[Path]) -> None:
        _check(measured, base)
        self.measured = measured
        self.base = base
        self.own = knob_table.resolve(knobs_from_run(base))
        self._stores = stores

    @cached_property
    def trace(self) -> Trace:
        """The workload of both.

        Raises:
            GapscopeError: no store has it.
        """
        return played_trace(self.base, self._stores)

    def rungs(self) -> Iterator[tuple[int, Layers | None, str]]:
        """Rung by rung what it is made of, or in a sentence why there is none; those after it do without that layer."""
        timing = build_timing(self.own, self._own_model, preset_folders(self._stores, self.base.lineage.get("timing")))
        layers = Layers(self.own, timing, self._own_model)
        takes = (self._pool, self._arrivals, self._reuse, self._durations, self._batches)
        for rung, take in zip(BUILT, takes, strict=True):
            try:
                layers = take(layers)
                layers = replace(layers, taken=(*layers.taken, rung.taken))
            except GapscopeError as error:
                yield rung.number, None, str(error)
            else:
                yield rung.number, layers, ""

    def is_base(self, layers: Layers) -> bool:
        """Whether they take nothing but what the prediction has already."""
        return layers.load is None and layers.values == self.own and layers.model is self._own_model

    @cached_property
    def _own_model(self) -> Mapping[str, Any] | None:
        """What the prediction was timed by."""
        if self.own["timing"] == "measured":
            return model_for(self.base, self._stores)
        model: Mapping[str, Any] | None = (self.base.lineage.get("timing") or {}).get("model")
        return model

    def _pool(self, layers: Layers) -> Layers:
        names = ("usable_kv_blocks", "kv_blocks", "block_size")
        usable, allocated, size = (self.measured.identity.value("capacity", name) for name in names)
        if size is None or (usable is None and allocated is None):
            raise GapscopeError(
                f"Run {self.measured.run_id} does not record how many KV blocks were usable, of how many tokens each."
            )
        pool = {"kv_blocks": allocated if usable is None else usable + 1, "block_size": size}
        return replace(layers, values=knob_table.resolve(pool, layers.values))

    def _arrivals(self, layers: Layers) -> Layers:
        turns, left = recorded_turns(self.measured)
        recorded = knobs_from_run(self.measured)
        phases = {name: recorded[name] for name in PHASE_KNOBS if name in recorded}
        values = knob_table.resolve({**AS_RECORDED, **phases}, layers.values)
        keys = block_keys_of(self.trace, values["block_size"])
        load = RecordedLoad(turns, self.trace, keys, values["cache_bust"])
        if len(load) < ENOUGH * len(turns):
            why = "; ".join(f"{words}: {count:,}" for words, count in load.left.items())
            raise GapscopeError(
                f"Only {len(load)} of the {len(turns)} requests of {self.measured.run_id} are turns of the trace "
                f"{self.trace.name} ({why})."
            )
        return replace(layers, values=values, load=load, left=layers.left + left + load.left)

    def _reuse(self, layers: Layers) -> Layers:
        load = self._needs_arrivals(layers)
        if layers.values["engine"] == "sglang":
            raise GapscopeError(
                "The prediction has SGLang's scheduler, which takes what its cache holds: expected another engine for "
                "a rung with measured reuse."
            )
        if all(turn.cached_tokens is None for turn in load.turns):
            raise GapscopeError(f"Run {self.measured.run_id} does not record the cached tokens of its requests.")
        unknown = sum(turn.cached_tokens is None and turn.canceled_ns is None for turn in load.turns)
        left = +Counter({"requests whose cached tokens are not recorded": unknown})
        return replace(layers, forced=True, left=layers.left + left)

    def _durations(self, layers: Layers) -> Layers:
        match = "geometry" if layers.load is None or _schedulers(layers.values) > 1 else "order"
        values = knob_table.resolve(MEASURED_DURATIONS | {"measured_match": match}, layers.values)
        model = measured_model(self.measured)
        return replace(layers, values=values, model=model, timing=build_timing(values, model))

    def _batches(self, layers: Layers) -> Layers:
        load = self._needs_arrivals(layers)
        if _schedulers(layers.values) > 1:
            raise GapscopeError(
                f"The prediction has {_schedulers(layers.values)} schedulers, and recorded batches are formed by one: "
                "expected a prediction with replicas=1, attention_dp=1 and prefill_replicas=0."
            )
        batches, left = recorded_batches(self.measured, load.index)
        return replace(layers, batches=batches, left=layers.left + left)

    def _needs_arrivals(self, layers: Layers) -> RecordedLoad:
        if layers.load is None:
            raise GapscopeError(
                "This rung needs the measured arrivals of rung 2: without them no request is a measured one."
            )
        return layers.load


def _schedulers(values: Mapping[str, Any]) -> int:
    return int(values["replicas"]) * int(values["attention_dp"]) + int(values["prefill_replicas"])


def _check(measured: Bundle, base: Bundle) -> None:
    if measured.kind != "measured":
        raise GapscopeError(f"{measured.run_id} is a {measured.kind}, not a measured run: a ladder leads to one.")
    if base.kind != "replay" or base.lineage.get("rung"):
        what = "a rung of a ladder itself" if base.kind == "replay" else f"a {base.kind} run"
        raise GapscopeError(f"{base.run_id} is {what}: a ladder starts from a replay that predicts the run.")
    played, predicted = (run.identity.value("trace", "digest") for run in (measured, base))
    if not predicted:
        raise GapscopeError(f"The identity of {base.run_id} does not say which trace was played.")
    if played and played != predicted:
        raise GapscopeError(
            f"{measured.run_id} and {base.run_id} are of different workloads (traces {str(played)[:12]} and "
            f"{str(predicted)[:12]}): there is no ladder between them."
        )
