"""Builds the rungs of a ladder, one replay after the other, each with one layer more of the measured run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from engine import knobs as knob_table
from engine.bundle import Bundle, BundleWriter, list_bundles, measured_runs, open_bundle
from engine.errors import GapscopeError, UnwritableStore
from engine.ladder.layers import Layers, Pair
from engine.ladder.rungs import BUILT, PARITY_RUNG, RUNGS
from engine.parity import (
    ParityResult,
    TimedParity,
    check_by_dispatch,
    check_closed_loop,
    check_parity,
    divergences_table,
)
from engine.replay import Canceled, simulate, write
from engine.replay.counterfactual import Counterfactual
from engine.replay.identity import package_version
from engine.replay.loop import server_config
from engine.serving.composed import ComposedServer
from engine.timing import build_timing
from engine.workload.recorded import RecordedClient

DEFAULTS = knob_table.defaults()
SCHEDULER_RULES = ("engine", "policy", "reservation", "eviction", "cache_blocks", "host_kv_blocks")
"""Knobs that make a scheduler another than the one that parity feeds."""
Progress = Callable[[float, str], None]
"""Called with the share that is done and what is being done."""


@dataclass(frozen=True, slots=True)
class BuiltRung:
    """A rung and the replay that it is, or a sentence on why there is none; ``found`` where the store had it before."""

    number: int
    run_id: str | None
    why: str = ""
    found: bool = False


@dataclass(frozen=True, slots=True)
class Ladder:
    """The rungs between a prediction (``base``) and a measured run, both by run id."""

    measured: str
    base: str
    rungs: tuple[BuiltRung, ...]


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
    again gives the same runs, so one that lies in the folder already, intact and made by this version, is not built.

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
    builder = _Builder(Pair(measured, base, stores), stores, store, progress, cancel)
    return Ladder(measured.run_id, base.run_id, tuple(builder.build()))


def plan_ladder(measured: Bundle, base: Bundle, *, stores: Sequence[Path]) -> tuple[BuiltRung, ...]:
    """Which rungs could be built, without building them: no run ids, and why not where something is missing.

    Raises:
        GapscopeError: the two runs make no ladder.
    """
    return tuple(BuiltRung(number, None, why) for number, _, why in Pair(measured, base, stores).rungs())


@dataclass(frozen=True, slots=True)
class _Builder:
    pair: Pair
    stores: Sequence[Path]
    store: Path
    progress: Progress | None
    cancel: Callable[[], bool] | None

    def build(self) -> Iterator[BuiltRung]:
        before = self._before()
        for number, layers, why in self.pair.rungs():
            if layers is None:
                yield BuiltRung(number, None, why)
                continue
            self._report(number, 0.0)
            if standing := next((run for run in before if _is_rung(run, number, layers)), None):
                yield BuiltRung(number, standing.run_id, found=True)
                continue
            try:
                make = self._copy if self.pair.is_base(layers) else self._replay
                yield BuiltRung(number, make(number, layers))
            except UnwritableStore:
                raise
            except GapscopeError as error:
                yield BuiltRung(number, None, str(error))

    def _before(self) -> list[Bundle]:
        """Rungs of this ladder that the folder holds already, made by this version of the program."""
        ends = {"measured": self.pair.measured.run_id, "base": self.pair.base.run_id}
        found = []
        for path in list_bundles(self.store) if self.store.is_dir() else ():
            try:
                run = open_bundle(path)
            except GapscopeError:
                continue
            told = run.lineage.get("ladder") or {}
            own = {name: told.get(name) for name in ends} == ends
            if own and run.identity.value("client", "version") == package_version():
                found.append(run)
        return found

    def _copy(self, number: int, layers: Layers) -> str:
        """The rung that takes nothing but what the base had already: the same replay, with a lineage of its own."""
        base, counterfactual = self.pair.base, self._counterfactual(number, layers, layers.left)
        own = {"like": self.pair.measured.run_id, "parent_run": base.run_id}
        with BundleWriter(self.store, "replay", self._slug(number), self._title(number), base.identity) as writer:
            for name in base.tables:
                self._report(number, 0.5)
                writer.write_table(name, base.table(name))
            return writer.seal(
                phases=base.phases,
                ledger=base.ledger,
                lineage=base.lineage | counterfactual.lineage() | own,
                qualification=[check for check in base.qualification if check.check != "ledger_balances"],
                host=base.manifest["host"],
            )

    def _replay(self, number: int, layers: Layers) -> str:
        values, timing, client, server = layers.values, layers.timing, None, None
        if values["timing"] == "measured":  # what it answers depends on what it was asked before
            timing = build_timing(values, layers.model)
        if layers.load is not None:
            client = RecordedClient(layers.load, values, layers.forced)
        if layers.forced:
            values = values | {"core": "plain"}
        if layers.batches is not None:
            server = ComposedServer(server_config(values), timing, layers.batches)

        def report(now_ns: int, *_: Any) -> None:
            self._report(number, _share(now_ns, values))

        result = simulate(self.pair.trace, values, timing, layers.model, report, self.cancel, client, server)
        left = layers.left + server.departures if server is not None else layers.left
        counterfactual = self._counterfactual(number, layers, left)
        more: dict[str, pa.Table] = {}
        if number == PARITY_RUNG:
            counterfactual, more = self._with_parity(counterfactual)
        return write(
            result,
            layers.model,
            self.store,
            more=more,
            cancel=self.cancel,
            title=self._title(number),
            slug=self._slug(number),
            like=self.pair.measured,
            held=measured_runs(self.stores),
            parent_run=self.pair.base.run_id,
            counterfactual=counterfactual,
        )

    def _counterfactual(self, number: int, layers: Layers, left: Counter[str]) -> Counterfactual:
        words = [f"{text}: {count:,}" for text, count in left.items()]
        like, measured = self.pair.base.lineage.get("like"), self.pair.measured.run_id
        if like and like != measured:
            words.insert(0, f"the prediction is of {like}, another run of the same workload")
        return Counterfactual(
            number,
            measured,
            self.pair.base.run_id,
            layers.taken,
            tuple(words),
            arrivals=layers.load is not None,
            reuse=layers.forced,
            batches=layers.batches is not None,
            knobs=self.pair.own,
        )

    def _with_parity(self, counterfactual: Counterfactual) -> tuple[Counterfactual, dict[str, pa.Table]]:
        """How well the scheduler follows the recording, and where the two part."""
        measured, trace, found = self.pair.measured, self.pair.trace, []
        parity: dict[str, Any] = {}
        other = [f"{name}={self.pair.own[name]}" for name in SCHEDULER_RULES if self.pair.own[name] != DEFAULTS[name]]
        if other:
            why = f"no scheduler parity: it checks vLLM's rules, and the prediction has {', '.join(other)}"
            return replace(counterfactual, left=(*counterfactual.left, why)), {}
        checks: dict[str, Callable[[], ParityResult | TimedParity]] = {
            "arrival": lambda: check_parity(measured),
            "dispatch": lambda: check_by_dispatch(measured),
            "loop": lambda: check_closed_loop(measured, trace),
        }
        for name, check in checks.items():
            self._report(PARITY_RUNG, 1.0)
            try:
                result = check()
            except GapscopeError as error:
                why = f"no scheduler parity: {error}"
                if why not in counterfactual.left:
                    counterfactual = replace(counterfactual, left=(*counterfactual.left, why))
                continue
            parity[name] = result.summary()
            found += [result] if isinstance(result, TimedParity) else []
        if not parity:
            return counterfactual, {}
        return replace(counterfactual, parity=parity), {"divergences": divergences_table(found)}

    def _title(self, number: int) -> str:
        return f"{self.pair.measured.title}: rung {number}, {RUNGS[number].name}"

    def _slug(self, number: int) -> str:
        return f"{self.pair.measured.run_id.rpartition('-')[0][:50]}-rung{number}"

    def _report(self, number: int, share: float) -> None:
        if self.cancel and self.cancel():
            raise Canceled
        if self.progress:
            self.progress((number - 1 + share) / len(BUILT), f"rung {number}, {RUNGS[number].name}")


def _share(now_ns: int, values: Mapping[str, Any]) -> float:
    """Share of a replay that is done; half, where nothing says when it ends."""
    before, during = values["warmup_s"], values["duration_s"] + values["grace_s"]
    return min(1.0, (now_ns / 1e9 + before) / (before + during)) if values["duration_s"] else 0.5


def _is_rung(run: Bundle, number: int, layers: Layers) -> bool:
    """Whether an intact run is this rung and takes the same from the measurement."""
    told = run.lineage.get("ladder") or {}
    return run.lineage.get("rung") == number and told.get("taken") == list(layers.taken) and not run.verify()
