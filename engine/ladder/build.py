"""Builds the rungs of a ladder, one replay after the other, each with one layer more of the measured run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from engine import knobs as knob_table
from engine.bundle import Bundle, BundleWriter, measured_runs
from engine.errors import GapscopeError
from engine.ladder.recording import recorded_batches, recorded_turns
from engine.ladder.rungs import BUILT, RUNGS
from engine.replay import Canceled, knobs_from_run, simulate, write
from engine.replay.counterfactual import Counterfactual
from engine.replay.loop import server_config
from engine.serving.composed import ComposedServer
from engine.serving.members import Members
from engine.timing import build_timing, measured_model
from engine.timing.contract import PassTimeSource
from engine.traces import stored_trace
from engine.traces.tree import Trace
from engine.workload.hash_ids import block_keys_of
from engine.workload.recorded import RecordedClient, RecordedLoad

Progress = Callable[[float, str], None]
"""Called with the share that is done and what is being done."""
PHASE_KNOBS = ("warmup_s", "duration_s", "grace_s")
ENOUGH = 0.5
"""Share of the measured requests that the trace must have, or the measured arrivals say nothing."""


@dataclass(frozen=True, slots=True)
class BuiltRung:
    """A rung and the replay that it is, or a sentence on why there is none."""

    number: int
    run_id: str | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Ladder:
    """The rungs between a prediction (``base``) and a measured run, both by run id."""

    measured: str
    base: str
    rungs: tuple[BuiltRung, ...]


@dataclass(frozen=True)
class _Layers:
    """What has been taken so far."""

    values: dict[str, Any]
    timing: PassTimeSource
    model: Mapping[str, Any] | None
    taken: tuple[str, ...] = ()
    left: Counter[str] = field(default_factory=Counter)
    load: RecordedLoad | None = None
    forced: bool = False
    batches: Members | None = None


def build_ladder(
    measured: Bundle,
    base: Bundle,
    *,
    stores: Sequence[Path],
    store: Path,
    progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
) -> Ladder:
    """Build every rung that can be built between the prediction ``base`` and the run that it predicts.

    A rung that cannot be built is skipped with a sentence; those after it do without that layer. Building a ladder
    again gives the same runs.

    Args:
        measured: the measured run.
        base: a replay of it, or of another run of the same workload.
        stores: where the trace is looked for, and the measured runs that the rungs name as held.
        store: the folder that gets the rungs.
        progress: see :data:`Progress`.
        cancel: asked a few times per second; True ends the work. Rungs that are finished stay.

    Raises:
        GapscopeError: the two runs make no ladder, or the store cannot be written.
        Canceled: ``cancel`` said so.
    """
    builder = _Builder(measured, base, stores, store, progress, cancel)
    return Ladder(measured.run_id, base.run_id, tuple(builder.build()))


def plan_ladder(measured: Bundle, base: Bundle, *, stores: Sequence[Path]) -> tuple[BuiltRung, ...]:
    """Which rungs could be built, without building them: no run ids, and why not where something is missing.

    Raises:
        GapscopeError: the two runs make no ladder.
    """
    return tuple(BuiltRung(number, None, why) for number, _, why in _Builder(measured, base, stores).layers())


class _Builder:
    def __init__(
        self,
        measured: Bundle,
        base: Bundle,
        stores: Sequence[Path],
        store: Path | None = None,
        progress: Progress | None = None,
        cancel: Callable[[], bool] | None = None,
    ) -> None:
        _check_pair(measured, base)
        self.measured = measured
        self.base = base
        self.stores = stores
        self.store = store
        self.progress = progress
        self.cancel = cancel
        self.own = knob_table.resolve(knobs_from_run(base))
        self.recorded = knobs_from_run(measured)

    # -- the layers --------------------------------------------------------------------------------------------

    def layers(self) -> Iterable[tuple[int, _Layers | None, str]]:
        """Rung by rung what it is made of, or why it cannot be made."""
        model = (self.base.lineage.get("timing") or {}).get("model")
        layers = _Layers(self.own, build_timing(self.own, model), model)
        takes = (self._take_pool, self._take_arrivals, self._take_reuse, self._take_durations, self._take_batches)
        for rung, take in zip(BUILT, takes, strict=True):
            try:
                layers = take(layers)
                layers = replace(layers, taken=(*layers.taken, rung.taken))
                yield rung.number, layers, ""
            except GapscopeError as error:
                yield rung.number, None, str(error)

    @cached_property
    def trace(self) -> Trace:
        """The workload of both runs."""
        digest = self.base.identity.value("trace", "digest")
        return stored_trace(self.stores, str(digest))

    def _take_pool(self, layers: _Layers) -> _Layers:
        identity = self.measured.identity
        usable, allocated = (identity.value("capacity", name) for name in ("usable_kv_blocks", "kv_blocks"))
        if usable is None and allocated is None:
            raise GapscopeError(f"Run {self.measured.run_id} does not record how many KV blocks were usable.")
        pool = {"kv_blocks": allocated if usable is None else usable + 1}
        size = identity.value("capacity", "block_size")
        if size is not None:
            pool["block_size"] = size
        values = knob_table.resolve(pool, layers.values)
        left = Counter() if size is not None else Counter({"block size: not recorded": 1})
        return replace(layers, values=values, left=layers.left + left)

    def _take_arrivals(self, layers: _Layers) -> _Layers:
        turns, left = recorded_turns(self.measured)
        phases = {name: self.recorded[name] for name in PHASE_KNOBS if name in self.recorded}
        values = knob_table.resolve(phases, layers.values)
        keys = block_keys_of(self.trace, values["block_size"])
        load = RecordedLoad(turns, self.trace, keys, bust=values["cache_bust"] == "play")
        if len(load) < ENOUGH * len(turns):
            why = "; ".join(f"{count} {words}" for words, count in load.left.items())
            raise GapscopeError(
                f"Only {len(load)} of the {len(turns)} requests of {self.measured.run_id} are turns of the trace "
                f"{self.trace.name} ({why})."
            )
        return replace(layers, values=values, load=load, left=layers.left + left + load.left)

    def _take_reuse(self, layers: _Layers) -> _Layers:
        load = self._needs_arrivals(layers, "the reuse of a request")
        unknown = sum(turn.cached_tokens is None for turn in load.turns)
        if unknown == len(load):
            raise GapscopeError(f"Run {self.measured.run_id} does not record the cached tokens of its requests.")
        left = +Counter({"requests whose cached tokens are not recorded": unknown})
        return replace(layers, forced=True, left=layers.left + left)

    def _take_durations(self, layers: _Layers) -> _Layers:
        match = "order" if layers.load is not None else "geometry"
        own = {"timing": "measured", "measured_match": match, "pass_scale": 1.0, "between_passes_ms": -1.0}
        values = knob_table.resolve(own | {"on_refused": "clamp"}, layers.values)
        model = measured_model(self.measured)
        return replace(layers, values=values, model=model, timing=build_timing(values, model))

    def _take_batches(self, layers: _Layers) -> _Layers:
        load = self._needs_arrivals(layers, "a member of a batch")
        batches, left = recorded_batches(self.measured, load.index)
        return replace(layers, batches=batches, left=layers.left + left)

    def _needs_arrivals(self, layers: _Layers, what: str) -> RecordedLoad:
        if layers.load is None:
            raise GapscopeError(f"Without the measured arrivals, no request of the replay says which {what} is.")
        return layers.load

    # -- the replays -------------------------------------------------------------------------------------------

    def build(self) -> Iterable[BuiltRung]:
        """Build rung by rung."""
        for number, layers, why in self.layers():
            if layers is None:
                yield BuiltRung(number, None, why)
                continue
            try:
                yield BuiltRung(number, self._build(number, layers))
            except GapscopeError as error:
                yield BuiltRung(number, None, str(error))

    def _build(self, number: int, layers: _Layers) -> str:
        self._report(number, 0.0)
        if layers.load is None and layers.values == self.own:
            return self._copy_base(number, layers)
        values, load = layers.values, layers.load
        timing = layers.timing
        if values["timing"] == "measured":  # its answers depend on what was asked before
            timing = build_timing(values, layers.model)
        client = server = None
        if load is not None:
            client = RecordedClient(load, values, layers.forced)
            values = values | {"core": "plain"} if layers.forced else values
        if layers.batches is not None:
            server = ComposedServer(server_config(values), timing, layers.batches)
        result = simulate(
            self.trace,
            values,
            timing,
            layers.model,
            lambda now_ns, *_: self._report(number, self._share(now_ns, values)),
            self.cancel,
            client,
            server,
        )
        left = layers.left + (server.departures if server is not None else Counter())
        about = self._about(number, layers, left)
        return write(
            result,
            layers.model,
            self._store,
            cancel=self.cancel,
            title=self._title(number),
            slug=self._slug(number),
            like=self.measured,
            held=measured_runs(self.stores),
            parent_run=self.base.run_id,
            counterfactual=about,
        )

    def _copy_base(self, number: int, layers: _Layers) -> str:
        """The rung that takes nothing that the base did not have: the same replay, with a lineage of its own."""
        base = self.base
        about = self._about(number, layers, layers.left)
        lineage = base.lineage | about.lineage() | {"like": self.measured.run_id, "parent_run": base.run_id}
        with BundleWriter(self._store, "replay", self._slug(number), self._title(number), base.identity) as writer:
            for name in base.tables:
                if self.cancel and self.cancel():
                    raise Canceled
                writer.write_table(name, base.table(name))
            return writer.seal(
                phases=base.phases,
                ledger=base.ledger,
                lineage=lineage,
                qualification=[check for check in base.qualification if check.check != "ledger_balances"],
                host=base.manifest.get("host"),
            )

    def _about(self, number: int, layers: _Layers, left: Counter[str]) -> Counterfactual:
        words = [f"{count:,} {text}" for text, count in left.items()]
        like = self.base.lineage.get("like")
        if like and like != self.measured.run_id:
            words.insert(0, f"the base predicts {like}, another run of the same workload")
        return Counterfactual(
            number,
            self.measured.run_id,
            self.base.run_id,
            layers.taken,
            tuple(words),
            arrivals=layers.load is not None,
            reuse=layers.forced,
            batches=layers.batches is not None,
        )

    @property
    def _store(self) -> Path:
        assert self.store is not None, "a plan builds nothing"
        return self.store

    def _title(self, number: int) -> str:
        return f"{self.measured.title}: rung {number}, {RUNGS[number].name}"

    def _slug(self, number: int) -> str:
        return f"{self.measured.run_id.rpartition('-')[0][:50]}-rung{number}"

    def _share(self, now_ns: int, values: Mapping[str, Any]) -> float:
        before, during = values["warmup_s"], values["duration_s"] + values["grace_s"]
        return min(1.0, (now_ns / 1e9 + before) / (before + during)) if values["duration_s"] else 0.5

    def _report(self, number: int, share: float) -> None:
        if self.cancel and self.cancel():
            raise Canceled
        if self.progress:
            self.progress((number - 1 + share) / len(BUILT), f"rung {number}, {RUNGS[number].name}")


def _check_pair(measured: Bundle, base: Bundle) -> None:
    if measured.kind != "measured":
        raise GapscopeError(f"{measured.run_id} is a {measured.kind}, not a measured run: a ladder leads to one.")
    if base.kind != "replay" or base.lineage.get("rung"):
        what = "a rung of a ladder itself" if base.kind == "replay" else f"a {base.kind}"
        raise GapscopeError(f"{base.run_id} is {what}: a ladder starts from a replay that predicts the run.")
    played, predicted = (run.identity.value("trace", "digest") for run in (measured, base))
    if not predicted:
        raise GapscopeError(f"The identity of {base.run_id} does not say which trace was played.")
    if played and played != predicted:
        raise GapscopeError(
            f"{measured.run_id} and {base.run_id} are of different workloads (traces {str(played)[:12]} and "
            f"{str(predicted)[:12]}): there is no ladder between them."
        )
