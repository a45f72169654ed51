"""What pages make of a large run at its first use, made before somebody waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

from dashboard.compare import compare
from dashboard.compare.boundaries import Boundaries
from dashboard.kept.derived import is_large
from dashboard.metrics import HEADLINE, METRICS, SUBSETS, Estimator, Population
from dashboard.pairs import comparable, replays_of
from dashboard.queries.cohort import one_sided
from dashboard.queries.identity import repeats
from dashboard.queries.lengths import pair_errors
from dashboard.queries.passes import CLASS_AXES, axis_limit, duration_curve, same_geometry
from dashboard.queries.percentiles import PROPERTIES, by_bucket
from dashboard.store import WORKED_OUT, Store
from dashboard.view import PARAMS
from engine.bundle.schema import TABLES

POPULATIONS = tuple(
    Population(phase, subset) for phase in ("profile", "all", "warmup") for subset in SUBSETS if subset != "child"
)
"""Those that the bar on top offers of most runs, the one that opens first in front."""
Told = Callable[[str], None]


def large_runs(store: Store) -> list[str]:
    """The sound runs with requests of which files are kept, by what their manifests say."""
    entries = [entry for entry in store.catalogue() if entry.state == "ok" and entry.requests]
    bundles = [store.catalog.manifest(entry.run_id) for entry in entries]
    return [bundle.run_id for bundle in bundles if is_large(bundle.rows(one) for one in TABLES)]


def prepare(store: Store, run_id: str, told: Told | None = None) -> bool:
    """Work out the tables of a run, and what pages say of it beside its nearest replay or its measured runs.

    Everything is kept in files by a store that is ``preparing``, so that asking again costs little. ``told`` is called
    with the words of each part.
    False of a run that is not large or has no requests.

    Raises:
        GapscopeError: the run is absent or altered, or a limit of a query.
    """
    if not store.is_large(run_id) or "requests" not in store.tables(run_id):
        return False
    with store.steady():
        for words, work in _parts(store, run_id):
            if told is not None:
                told(words)
            work()
    return True


def _parts(store: Store, run_id: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """What there is to do, in words and as a call; what is asked for first comes first."""
    beside = list(_pairs(store, run_id))
    for population in POPULATIONS:
        for pair in beside:
            yield f"numbers of {population.words}", partial(_numbers, store, *pair, population)
    for name in WORKED_OUT:
        yield f"table {name}", partial(store.work_out, run_id, name)


def _numbers(store: Store, measured: str, replay: str, population: Population) -> None:
    """What the pages of a pair say of a population: its numbers, its passes, and the boundaries of its requests."""
    compare(store, measured, replay, population)
    if population.subset == "complete":
        _of_phase(store, (measured, replay), population)
    own = (population.for_side(replay), population.for_side(measured))
    for until in ("e2e", "ttft"):
        found = Boundaries(store, (measured, replay), own, until, repeats(store, measured))
        for choice in (found.complete, found.tail(PARAMS["bnd_tail"].default, Estimator.LINEAR)):
            for index in range(2):
                found.group(index, choice)
            found.layers(1, choice)


def _of_phase(store: Store, pair: tuple[str, str], population: Population) -> None:
    """What is the same for every population of a phase, and what the default metric is made of."""
    one_sided(store, *pair, population)
    pair_errors(store, *pair, METRICS[PARAMS["metric"].default], population)
    if all("passes" in store.tables(run_id) for run_id in pair):
        same_geometry(store, *pair, population)
        for pass_class, axis in product(CLASS_AXES, PARAMS["along"].choices):
            limit = max(axis_limit(store, pair, population, pass_class, axis), 1)
            for run_id in pair:
                duration_curve(store, run_id, population, pass_class, axis, limit)
    if population == HEADLINE:
        for run_id, by in product(pair, PROPERTIES):
            by_bucket(store, run_id, METRICS[PARAMS["metric"].default], population, by)


def _pairs(store: Store, run_id: str) -> Iterator[tuple[str, str]]:
    """The pairs that open with a run: with the nearest replay of a measured one, or as the replay of any."""
    entries = store.catalogue()
    for entry in comparable(entries):
        if entry.kind == "measured":
            replays = replays_of(store, entry.run_id, entries)
            yield from (
                (entry.run_id, one)
                for one in (replays[:1] if entry.run_id == run_id else replays)
                if run_id in (entry.run_id, one)
            )
