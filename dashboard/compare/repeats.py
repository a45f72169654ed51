"""A run beside its own repeats: what changes when nothing was changed, and where a replay stands against that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dashboard.compare.noise import Noise, noise
from dashboard.compare.numbers import Key, Number, number
from dashboard.compare.rows import Row, compare_number, refused
from dashboard.metrics import HEADLINE_METRICS, HEADLINE_STATISTICS, Estimator, Population, Window
from dashboard.store import Store

Place = Literal[
    "inside both", "inside the repeats", "inside the bootstrap", "outside both", "unknown", "not comparable"
]


def headline_keys(window: Window) -> tuple[Key, ...]:
    """The numbers that a run and its repeats are compared by."""
    samples = [Key(metric, statistic) for metric in HEADLINE_METRICS for statistic in HEADLINE_STATISTICS]
    rates = [Key(metric, window.value) for metric in ("request_rate", "output_rate")]
    return (*samples, *rates, Key("hit_ratio", "tokens"), Key("preemptions", "requests"))


def repeat_rows(
    store: Store, run_id: str, repeat: str, population: Population, estimator: Estimator, window: Window
) -> tuple[Row, ...]:
    """The run (``measured``) and one repeat (``replay``); the noise is the run's bootstrap alone, not the repeat."""
    key = ("repeat rows", run_id, repeat, population, estimator, window)

    def make() -> tuple[Row, ...]:
        pair = (run_id, repeat)
        return tuple(compare_number(store, pair, each, population, estimator, ()) for each in headline_keys(window))

    found: tuple[Row, ...] = store.remember(key, make, runs=(run_id, repeat))
    return found


@dataclass(frozen=True, slots=True)
class Standing:
    """One number of a replay against both measures of noise of the measured run; a measure is None where unknown.

    ``refused`` says why the number is another quantity on the other side; there is no gap then, and no place.
    """

    key: Key
    run: Number
    replay: Number
    repeats: Noise | None
    bootstrap: Noise | None
    refused: str = ""

    @property
    def gap(self) -> float | None:
        """replay / run - 1; None where a side is unknown, the run's value is zero, or they are not comparable."""
        if self.refused or self.run.value is None or self.replay.value is None or not self.run.value:
            return None
        return self.replay.value / self.run.value - 1

    @property
    def place(self) -> Place:
        """Which measures hold the replay's value; ``unknown`` where a value or every measure is missing."""
        value = self.replay.value
        if self.refused:
            return "not comparable"
        if value is None or self.run.value is None or not (self.repeats or self.bootstrap):
            return "unknown"
        repeats = self.repeats is not None and self.repeats.holds(value)
        bootstrap = self.bootstrap is not None and self.bootstrap.holds(value)
        if repeats and bootstrap:
            return "inside both"
        if repeats:
            return "inside the repeats"
        return "inside the bootstrap" if bootstrap else "outside both"


def standings(
    store: Store,
    run_id: str,
    replay: str,
    repeats: tuple[str, ...],
    population: Population,
    estimator: Estimator,
    window: Window,
) -> tuple[Standing, ...]:
    """Where a replay stands. ``population`` must be one whose members do not depend on the other side."""
    assert not population.matched, "each pair would have members of its own"

    def one(key: Key) -> Standing:
        left = number(store, run_id, key, population, estimator)
        right = number(store, replay, key, population, estimator)
        spread = noise(store, run_id, key, population, estimator, repeats, left) if repeats else None
        spread = spread if spread and spread.kind == "repeats" else None
        drawn = noise(store, run_id, key, population, estimator, (), left)
        said = refused(store, run_id, replay, key)
        return Standing(key, left, right, spread, drawn, str(said) if said else "")

    def make() -> tuple[Standing, ...]:
        return tuple(one(key) for key in headline_keys(window))

    key = ("standings", run_id, replay, repeats, population, estimator, window)
    found: tuple[Standing, ...] = store.remember(key, make, runs=(run_id, replay, *repeats))
    return found
