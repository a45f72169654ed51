"""Several runs of one server side by side: outcomes, definitions, numbers by one rule, the tools' own figures, and why.

No request of one run is joined with one of another: their populations differ, and only their distributions stand side
by side. The first run is the one that the others are held against where it is asked whether a number is comparable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dashboard.compare.beside import Figure, figures
from dashboard.compare.numbers import Key, Number, number
from dashboard.compare.reasons import reasons
from dashboard.compare.tool_runs import ToolRun, tool_run
from dashboard.metrics import MAX_TOOLS, TOOL_METRICS, Estimator, Population, Window
from dashboard.store import Store
from engine.definitions import Refusal, caveats, refusal
from engine.errors import GapscopeError
from engine.identity import FIELDS, Field

KINDS = ("measured", "replay", "imported_summary")
RATES = ("request_rate", "output_rate", "total_rate")
STATISTICS = ("mean", "p50", "p90", "p99")
OWN_STATISTICS = ("mean", "p50", "p90", "p95", "p99")
"""Of the tools' own figures, those that are shown; all of them stand on the Source page."""
LETTERS = "ABCDEFGH"


@dataclass(frozen=True, slots=True)
class Definition:
    """One definition in all runs, in their order; None where a run does not say."""

    name: str
    label: str
    fields: tuple[Field | None, ...]

    @property
    def state(self) -> str:
        """``differs``, ``unknown`` (some say, and the same) or ``same``."""
        said = {str(field.value) for field in self.fields if field is not None}
        if len(said) > 1:
            return "differs"
        return "same" if None not in self.fields else "unknown"


@dataclass(frozen=True, slots=True)
class Cell:
    """The numbers of one metric of one run, and why they are not those of the first run's metric.

    ``stands`` says where they stand when nothing is in the way, ``caveats`` which rules differ for some requests.
    """

    metric: str
    letter: str
    numbers: Mapping[str, Number]
    refused: Refusal | None
    stands: str
    caveats: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        """How many values there are; of a rate, how many requests the window with most counts."""
        return max(found.n for found in self.numbers.values())

    @property
    def beside(self) -> str:
        """Whether it can stand beside the first run's, or why not and what would make it so; never empty."""
        missing: dict[str, list[str]] = {}
        for name, found in self.numbers.items():
            if found.why:
                missing.setdefault(found.why, []).append(name.replace("_", " "))
        if any(len(names) == len(self.numbers) for names in missing.values()):
            return next(iter(missing))
        if self.refused:
            return f"not comparable: {self.refused}"
        partly = (f"{', '.join(names)}: {why}" for why, names in missing.items())
        notes = dict.fromkeys(found.note for found in self.numbers.values() if found.note)
        return "; ".join((self.stands, *self.caveats, *notes, *partly))


FIRST = "the others stand beside this one"
BESIDE = "can stand beside A"
NOTHING_THERE = "A has none to stand beside"


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Everything that the page and the command show."""

    runs: tuple[ToolRun, ...]
    population: Population
    estimator: Estimator
    window: Window
    definitions: tuple[Definition, ...]
    cells: tuple[Cell, ...]
    rates: tuple[Cell, ...]
    figures: Mapping[str, tuple[Figure, ...]]
    reasons: tuple[str, ...]
    sql: Mapping[str, str]

    def own(self, letter: str) -> list[Figure]:
        """The tool's own figures that stand beside a number of this page, in the page's order."""
        order = (*TOOL_METRICS, *RATES)
        shown = [
            (order.index(figure.key.metric), figure)
            for figure in self.figures[letter]
            if figure.key is not None
            and figure.scope == "run"
            and figure.key.metric in order
            and (figure.key.metric in RATES or figure.statistic in OWN_STATISTICS)
        ]
        return [figure for _, figure in sorted(shown, key=lambda one: one[0])]

    def cell(self, metric: str, letter: str) -> Cell:
        """The numbers of a metric and a run."""
        return next(one for one in (*self.cells, *self.rates) if (one.metric, one.letter) == (metric, letter))


def side_by_side(
    store: Store,
    run_ids: Sequence[str],
    population: Population,
    estimator: Estimator = Estimator.LINEAR,
    window: Window = Window.FIXED,
) -> SideBySide:
    """Lay runs side by side; a matched subset is taken whole, as no request is joined.

    Raises:
        GapscopeError: no run, too many, one named twice, one of a kind that has no requests, absent or altered.
    """
    ids = tuple(run_ids)
    if not 1 <= len(ids) <= MAX_TOOLS:
        raise GapscopeError(f"{len(ids)} runs side by side: expected 1 to {MAX_TOOLS}.")
    if len(set(ids)) < len(ids):
        raise GapscopeError("A run is named twice: expected different runs.")
    whole = Population(population.phase) if population.matched else population
    for run_id in ids:
        store.bundle(run_id)  # notices files that changed before a kept answer is given
    key = ("side by side", ids, whole, estimator, window)
    with store.steady():
        made: SideBySide = store.remember(key, lambda: _make(store, ids, whole, estimator, window), runs=ids)
    return made


def _make(store: Store, ids: Sequence[str], population: Population, estimator: Estimator, window: Window) -> SideBySide:
    told = {run_id: figures(store, run_id, population, estimator, window) for run_id in ids}
    runs = tuple(
        tool_run(store, letter, run_id, told[run_id][0], population)
        for letter, run_id in zip(LETTERS, ids, strict=False)
    )
    cells = [
        _cell(store, runs, run, metric, STATISTICS, population, estimator) for metric in TOOL_METRICS for run in runs
    ]
    rates = [
        _cell(store, runs, run, metric, tuple(one.value for one in Window), population, estimator)
        for metric in RATES
        for run in runs
    ]
    own = {run.letter: tuple(told[run.run_id][0]) for run in runs}
    shown = [cell for cell in cells if not _empty_everywhere(cell.metric, cells)]
    return SideBySide(
        runs,
        population,
        estimator,
        window,
        _definitions(runs),
        tuple(shown),
        tuple(rates),
        own,
        tuple(reasons(runs, own, population)),
        {run.letter: told[run.run_id][1] for run in runs},
    )


def _cell(
    store: Store,
    runs: Sequence[ToolRun],
    run: ToolRun,
    metric: str,
    statistics: Sequence[str],
    population: Population,
    estimator: Estimator,
) -> Cell:
    first = runs[0]
    if run.rows:
        found = {name: number(store, run.run_id, Key(metric, name), population, estimator) for name in statistics}
    else:
        found = dict.fromkeys(statistics, Number(None, 0, "no rows: only the tool's own figures"))
    if run is first:
        return Cell(metric, run.letter, found, None, FIRST)
    identities = (first.bundle.identity, run.bundle.identity)
    known = first.rows and any(
        number(store, first.run_id, Key(metric, name), population, estimator).value is not None for name in statistics
    )
    stands, said = (BESIDE, caveats(metric, *identities)) if known else (NOTHING_THERE, [])
    return Cell(metric, run.letter, found, refusal(metric, *identities), stands, tuple(said))


def _empty_everywhere(metric: str, cells: Sequence[Cell]) -> bool:
    return all(number.value is None for cell in cells if cell.metric == metric for number in cell.numbers.values())


def _definitions(runs: Sequence[ToolRun]) -> tuple[Definition, ...]:
    """Every definition that a run names, those that differ first, then those that some do not say."""
    order = ("differs", "unknown", "same")
    found = []
    for name, spec in FIELDS["definitions"].items():
        fields = tuple(run.bundle.identity.get("definitions", name) for run in runs)
        if any(field is not None for field in fields):
            found.append(Definition(name, spec.label, fields))
    return tuple(sorted(found, key=lambda one: order.index(one.state)))
