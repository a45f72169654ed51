"""The numbers that are followed along a knob, at every point of a sweep, beside the measured run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dashboard.catalogue import RunEntry
from dashboard.compare.gates import Gate, GateResult, judge
from dashboard.compare.noise import Noise, noise
from dashboard.compare.numbers import Key, Number, number
from dashboard.compare.rows import refused
from dashboard.metrics import SWEEP_NUMBERS, SWEEP_RATES, Estimator, Population, Window
from dashboard.queries.identity import repeats
from dashboard.store import Store
from dashboard.sweeps.front import on_front
from dashboard.sweeps.plan import Point, key_of, record_of


@dataclass(frozen=True)
class Scope:
    """What the numbers are of: the measured run they are held against, population, estimator and window of rates."""

    measured: str
    population: Population
    estimator: Estimator
    window: Window

    def of(self, store: Store, run_id: str, name: str) -> Number:
        """A number of a run; ``name`` is one of :data:`~dashboard.metrics.SWEEP_NUMBERS`."""
        return number(store, run_id, self.key(name), self.population.for_side(self.measured), self.estimator)

    def key(self, name: str) -> Key:
        """The number of that name; a rate over the chosen window."""
        return Key(name, self.window.value) if name in SWEEP_RATES else Key.parse(name)

    def base(self, store: Store, run_id: str, name: str) -> tuple[Number, Noise | None]:
        """The number of the measured run and its noise; matched populations are those of the pair with ``run_id``."""
        key, own = self.key(name), self.population.for_side(run_id)
        found = number(store, self.measured, key, own, self.estimator)
        others = tuple(repeats(store, self.measured))
        return found, noise(store, self.measured, key, own, self.estimator, others, found)

    def judged(self, store: Store, run_id: str, gates: Sequence[Gate]) -> list[GateResult]:
        """The gates of a contract between the measured run and this one."""
        return [judge(store, self.measured, run_id, gate, self.estimator) for gate in gates]


@dataclass(frozen=True)
class Played:
    """A point with its run, where there is one, and the numbers of it that were asked for, by name.

    ``made`` says whether its run was made as this point; else it is a replay that the point would only repeat.
    """

    point: Point
    run_id: str | None
    numbers: Mapping[str, Number]
    gates: tuple[GateResult, ...] = ()
    made: bool = True

    @property
    def beside(self) -> str:
        """What is said beside it: why it has no run, or that its run was not made for it."""
        if self.run_id is None:
            return self.point.why or "not played yet"
        return "" if self.made else "a replay of the store with the same knobs, trace and timing"

    def value(self, name: str) -> float | None:
        """A number of the point; None where it has no run or the number is undefined."""
        found = self.numbers.get(name)
        return None if found is None else found.value

    @property
    def holds(self) -> bool | None:
        """Whether every gate holds; None where there is no contract or no run."""
        return all(gate.verdict == "pass" for gate in self.gates) if self.gates else None

    @property
    def fails(self) -> str:
        """The gates that do not hold."""
        return " ".join(gate.gate.text for gate in self.gates if gate.verdict == "fail")


def runs_of(entries: Sequence[RunEntry]) -> dict[str, str]:
    """Sound points of the store: run ids by what their lineage says."""
    return {entry.point: entry.run_id for entry in entries if entry.point and entry.state == "ok"}


def played(
    store: Store,
    known: Mapping[str, str],
    base: str,
    fit: Sequence[str],
    points: Sequence[Point],
    scope: Scope,
    names: Sequence[str],
    gates: Sequence[Gate] = (),
) -> list[Played]:
    """The points with their runs and numbers; ``known`` holds run ids by the keys of records."""
    found = []
    for point in points:
        record = record_of(base, point.changes, fit)
        run_id = known.get(key_of(record))
        numbers = {name: scope.of(store, run_id, name) for name in names} if run_id else {}
        judged = tuple(scope.judged(store, run_id, gates)) if run_id else ()
        made = run_id is None or store.bundle(run_id).lineage.get("point") == record
        found.append(Played(point, run_id, numbers, judged, made))
    return found


def front(found: Sequence[Played], rate: str, tail: str) -> list[bool]:
    """Which points stand on the Pareto front of a throughput against a latency."""
    pairs = [(one.value(rate), one.value(tail)) for one in found]
    return on_front([None if rate is None or tail is None else (rate, tail) for rate, tail in pairs])


def unlike(store: Store, scope: Scope, run_id: str, name: str) -> str:
    """Why a number of the measured run and of a replay is not one and the same quantity; empty where it may be."""
    return str(refused(store, scope.measured, run_id, scope.key(name)) or "")


def label_of(name: str, scope: Scope) -> str:
    """A number with its unit."""
    unit = scope.key(name).unit
    return f"{SWEEP_NUMBERS[name]}, {'%' if unit == 'share' else unit}"


def shown(value: float | None, unit: str) -> float | None:
    """A value as an axis has it: shares in percent."""
    return None if value is None else 100 * value if unit == "share" else value
