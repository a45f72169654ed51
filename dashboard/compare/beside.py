"""The tool's own figures beside ours: the same quantity by two rules, the difference, and what explains it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dashboard.compare.numbers import Key, Number, number
from dashboard.metrics import MEASURES, METRICS, STATISTICS, Estimator, Population, Window
from dashboard.store import Store

TO_MS: Mapping[str, float] = {"ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3, "us": 1e-3, "µs": 1e-3, "ns": 1e-6}
PER_SECOND: Mapping[str, float] = {"/s": 1.0, "/sec": 1.0, "/second": 1.0, "/min": 1 / 60, "/minute": 1 / 60}
AGREES = 0.002
"""Relative difference up to which a tool's printed figure and ours are taken for the same."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a tool. ``value`` is in the unit of our number ``key``, where it has one, else in ``unit``.

    ``ours`` is None where nothing of ours can stand beside it; ``why`` says so in a sentence.
    """

    scope: str
    name: str
    statistic: str
    labels: str
    unit: str
    value: float
    n: int | None
    definition: str
    source: str
    key: Key | None = None
    ours: Number | None = None
    why: str = ""

    @property
    def difference(self) -> float | None:
        """The tool's figure minus ours, in the unit of ours."""
        return None if self.ours is None or self.ours.value is None else self.value - self.ours.value

    @property
    def relative(self) -> float | None:
        """The difference relative to ours."""
        if self.difference is None or self.ours is None or not self.ours.value:
            return None
        return self.difference / abs(self.ours.value)

    @property
    def agrees(self) -> bool:
        """Whether both are the same but for rounding."""
        if self.difference is None:
            return False
        return self.difference == 0 or (self.relative is not None and abs(self.relative) <= AGREES)

    @property
    def explanation(self) -> str:
        """What the difference comes from: the tool's rule, and over how many values either was taken.

        Of a figure that stands alone: why it does, and the tool's rule.
        """
        if self.difference is None or self.ours is None:
            return "; ".join(filter(None, (self.why, self.definition)))
        words = []
        if self.n is not None and self.n != self.ours.n:
            words.append(f"over {self.n:,} values, ours over {self.ours.n:,}")
        if self.definition:
            words.append(f"the tool's rule: {self.definition}")
        if self.key is not None and self.key.metric in MEASURES:
            words.append(f"ours: {Window(self.key.statistic).words}")
        if self.agrees:
            words.insert(0, "agrees")
        return "; ".join(words) or "the tool does not say how it counts"


def figures(
    store: Store,
    run_id: str,
    population: Population,
    estimator: Estimator = Estimator.LINEAR,
    window: Window = Window.FIXED,
) -> tuple[list[Figure], str]:
    """Every figure that the tool left but for its time slices, and the SQL that read them; empty where it left none.

    Figures of the whole run that are of a metric of ours stand beside ours over ``population``, those of the warm-up
    beside ours over the warm-up; rates beside ours over ``window``. A run without rows has nothing of ours.
    """
    if "reported" not in store.tables(run_id):
        return [], ""

    def make() -> tuple[list[Figure], str]:
        return _figures(store, run_id, population, estimator, window)

    with store.steady():
        found: tuple[list[Figure], str] = store.remember(
            ("figures", run_id, population, estimator, window), make, runs=(run_id,)
        )
    return found


def _figures(
    store: Store, run_id: str, population: Population, estimator: Estimator, window: Window
) -> tuple[list[Figure], str]:
    over = {"run": population, "warmup": Population("warmup")}
    result = store.query("reported", runs={"run": run_id}, row_cap=None)
    found = []
    for row in result.rows():
        figure = Figure(
            scope=row["scope"],
            name=row["name"],
            statistic=row["statistic"],
            labels=row["labels"] or "",
            unit=row["unit"] or "",
            value=row["value"],
            n=row["n"],
            definition=row["definition"] or "",
            source=row["source"] or "",
        )
        own = over.get(figure.scope) if row["metric"] else None
        found.append(_beside(store, run_id, figure, row["metric"], own, estimator, window) if own else figure)
    return found, result.sql


def _beside(
    store: Store,
    run_id: str,
    figure: Figure,
    metric: str,
    population: Population,
    estimator: Estimator,
    window: Window,
) -> Figure:
    key = key_of(metric, figure.statistic, window)
    factor = None if key is None else factor_to(key.unit, figure.unit)
    if key is None or factor is None:
        return replace(figure, why=f"we have no {metric} {figure.statistic} in {figure.unit or 'no unit'}")
    told = replace(figure, value=figure.value * factor, unit=key.unit, key=key)
    if "requests" not in store.tables(run_id):
        return replace(told, why="the run has no rows to take ours from")
    ours = number(store, run_id, key, population, estimator)
    if ours.value is None:
        return replace(told, why=ours.why or "ours is undefined")
    return replace(told, ours=ours)


def key_of(metric: str, statistic: str, window: Window) -> Key | None:
    """Our number for a tool's statistic of a metric; None where there is none. A rate is ours over ``window``."""
    if metric in METRICS:
        return Key(metric, statistic) if statistic in STATISTICS else None
    if metric in MEASURES and MEASURES[metric].statistics == tuple(Window):
        return Key(metric, window.value)
    return None


def factor_to(ours: str, theirs: str) -> float | None:
    """What turns a value in the tool's unit into one in ours; None where the units are not of one kind."""
    unit = theirs.strip().lower()
    if ours == "ms":
        return TO_MS.get(unit)
    if ours in ("1/s", "tok/s"):
        return next((factor for ending, factor in PER_SECOND.items() if unit.endswith(ending)), None)
    return 1.0 if unit in (ours, "", "tokens", "count") else None
