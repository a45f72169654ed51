"""How far a number of the measured side moves when nothing changes.

Repeats of the measured run (equal identity) say it best. Without any, the measured rows are drawn again: whole lanes
of a closed loop, as its requests depend on each other, else single requests. Seeded, so the same rows give the same
interval. One or two repeats say too little of how far a number moves: they stay the interval that is shown, but what
lies beyond them counts as outside only where redrawing says so as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dashboard.compare.numbers import Key, Number, hit_parts, number, rate_parts
from dashboard.metrics import HEADLINE_STATISTICS, METRICS, Estimator, Metric, Population
from dashboard.queries.ranges import lanes as configured_lanes
from dashboard.queries.totals import totals
from dashboard.samples import Sample, sample
from dashboard.store import Store

RESAMPLES = 200
SUM_RESAMPLES = 10_000
"""Of counts by lane, which are few whole numbers: their sums step, so that fewer draws put the ends a step aside."""
SEED = 20_251
COVERED = (2.5, 97.5)  # percentiles of the resampled statistic
ENOUGH_REPEATS = 3
"""Repeats that are noise by themselves; with fewer, the measured side is drawn again as well."""
MAX_POINTS = 2_000
"""A larger sample is drawn again as this many bins of neighbouring values: the interval needs no more."""

Floats = npt.NDArray[np.float64]
Draws = tuple[Floats, Floats]
"""Points of a sample, sorted, and how often each is drawn in each resample (resample, point)."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Values of the measured side that are as good as the one measured: from ``low`` to ``high``, in its unit.

    ``n`` counts repeats, or resamples of ``units`` lanes or requests. ``redrawn`` is what a bootstrap gives beside too
    few repeats; None where there are enough, or where the number cannot be drawn again.
    """

    kind: Literal["repeats", "lanes", "requests"]
    low: float
    high: float
    n: int
    units: int = 0
    redrawn: tuple[float, float] | None = None

    def holds(self, value: float) -> bool:
        """Whether a value is inside."""
        return self.low <= value <= self.high

    @property
    def few(self) -> str:
        """How many repeats it rests on, in words, where these are too few to be noise by themselves; else empty."""
        if self.kind != "repeats" or self.n >= ENOUGH_REPEATS:
            return ""
        return "one repeat" if self.n == 1 else "two repeats"

    @property
    def interval(self) -> tuple[float, float]:
        """Its ends."""
        return self.low, self.high

    @property
    def wider(self) -> tuple[float, float] | None:
        """What a value must lie beyond to be outside, where redrawing makes that more than the interval; else None."""
        reach = self.reach
        return reach if reach and reach != self.interval else None

    def less(self, value: float) -> Noise:
        """The same around zero: what a difference from ``value`` is held against."""
        redrawn = self.redrawn and (self.redrawn[0] - value, self.redrawn[1] - value)
        return replace(self, low=self.low - value, high=self.high - value, redrawn=redrawn)

    @property
    def reach(self) -> tuple[float, float] | None:
        """What a value must lie beyond to be outside; None where that is not known: few repeats, and no redrawing."""
        if not self.few:
            return self.low, self.high
        return self.redrawn and (min(self.low, self.redrawn[0]), max(self.high, self.redrawn[1]))

    def relative(self, measured: float) -> tuple[float, float] | None:
        """The interval as signed gaps; None where the measured value is zero."""
        if measured == 0:
            return None
        return self.low / measured - 1, self.high / measured - 1

    @property
    def words(self) -> str:
        """Where it comes from."""
        if self.kind == "repeats":
            drawn = ", and redrawing" if self.redrawn else ", no redrawing" if self.few else ""
            return f"largest deviation of {self.n} repeat{'s' if self.n > 1 else ''} of the measured run{drawn}"
        return f"bootstrap over {self.units} {self.kind}, {self.n:,} resamples, central 95 %"


Place = Literal["inside", "open", "outside", "unknown"]


def place(spread: Noise | None, value: float) -> Place:
    """Where a value lies against the noise: the one rule by which anything is called outside of it.

    ``open`` is beyond one or two repeats, but inside redrawing, or where nothing can be drawn again: not shown.
    """
    if spread is None:
        return "unknown"
    if spread.holds(value):
        return "inside"
    reach = spread.reach
    return "outside" if reach and not reach[0] <= value <= reach[1] else "open"


INSIDE, OUTSIDE, UNKNOWN = "~ inside the noise", "outside the noise", "noise unknown"
MARKS: dict[Place, str] = {"inside": " ~", "open": " (open)", "outside": "", "unknown": ""}
"""What stands behind a difference in a cell."""


def place_words(spread: Noise | None, value: float) -> str:
    """What is said of a value beside its noise, on every page."""
    return words_of(place(spread, value), spread)


def words_of(where: Place, spread: Noise | None) -> str:
    """The same of a place against a noise."""
    return open_words(spread) if where == "open" else {"inside": INSIDE, "outside": OUTSIDE}.get(where, UNKNOWN)


def open_words(spread: Noise | None) -> str:
    """What is said of an open value."""
    assert spread is not None
    return f"beyond {spread.few}, {'inside redrawing' if spread.redrawn else 'no redrawing'}"


def noise(
    store: Store,
    run_id: str,
    key: Key,
    population: Population,
    estimator: Estimator,
    repeats: tuple[str, ...],
    measured: Number,
) -> Noise | None:
    """The noise of a number of the measured run, or None where nothing says it.

    With repeats it is the measured value give or take the largest deviation of a repeat, with a bootstrap beside it
    where these are too few.
    """
    if measured.value is None:
        return None
    if repeats and not population.matched:
        others = [number(store, other, key, population, estimator).value for other in repeats]
        known = [value for value in others if value is not None]
        if known:
            spread = max(abs(value - measured.value) for value in known)
            told = Noise("repeats", measured.value - spread, measured.value + spread, len(known))
            drawn = _bootstrap(store, run_id, key, population, estimator) if told.few else None
            return with_redrawing(told, drawn)
    return _bootstrap(store, run_id, key, population, estimator)


def with_redrawing(told: Noise, drawn: Noise | None) -> Noise:
    """The noise of repeats with what redrawing gives, where they are too few; what never happened cannot be drawn."""
    if not told.few or drawn is None or drawn.low >= drawn.high:
        return told
    return replace(told, redrawn=(drawn.low, drawn.high))


def closed_lanes(store: Store, run_id: str) -> bool:
    """Whether the client is a closed loop of lanes: their requests depend on each other, so whole lanes are drawn."""
    return store.bundle(run_id).identity.value("client", "loop") != "open" and bool(configured_lanes(store, run_id))


def lane_weights(lanes: int, resamples: int = RESAMPLES) -> Floats | None:
    """How often each lane is drawn in each resample (resample, lane); None where there is one lane only."""
    if lanes < 2:
        return None
    draws = np.random.default_rng(SEED).multinomial(lanes, np.full(lanes, 1 / lanes), resamples)
    return draws.astype(np.float64)


def _bootstrap(store: Store, run_id: str, key: Key, population: Population, estimator: Estimator) -> Noise | None:
    closed = closed_lanes(store, run_id)
    if key.metric in METRICS:
        metric = METRICS[key.metric]
        names = HEADLINE_STATISTICS if key.statistic in HEADLINE_STATISTICS else (key.statistic,)

        values = sample(store, run_id, metric, population)
        of = values.of or population

        def draw(by_lane: bool) -> Draws:
            made: Draws = store.remember(("draws", run_id, metric, of, by_lane), lambda: draws(values, by_lane))
            return made

        def make() -> dict[str, Noise | None]:
            return _of_sample(values, metric, names, estimator, closed, draw)

        asked = ("noise", run_id, metric.name, of, estimator, names)
        found: dict[str, Noise | None] = store.remember(asked, make, runs=(run_id,))
        return found[key.statistic]
    if not closed:
        return None
    if key.metric in ("request_rate", "output_rate", "total_rate", "output_rate_per_gpu"):
        parts = rate_parts(store, run_id, key, population)
        if parts.why:
            return None
        return _interval(_sums(parts.counts) / parts.seconds, "lanes", len(parts.counts))
    if key.metric == "hit_ratio":
        reused, whole = hit_parts(key, totals(store, run_id, population))
        return _interval(_sums(reused) / np.maximum(_sums(whole), 1), "lanes", len(reused))
    if key.metric == "preemptions":
        of = Population("all") if key.statistic == "capture" else population
        counts = totals(store, run_id, of).sums["preemptions"]
        return _interval(_sums(counts), "lanes", len(counts))
    return None


def _of_sample(
    found: Sample,
    metric: Metric,
    statistics: Sequence[str],
    estimator: Estimator,
    closed: bool,
    draw: Callable[[bool], Draws],
) -> dict[str, Noise | None]:
    """The intervals of several statistics of one sample; None where its values are not independent."""
    lanes = _lanes_of(found)
    by_lane = closed and len(lanes) > 1 and int(lanes[0]) >= 0
    if metric.source in ("itl", "chunk_gap", "passes") and not by_lane:
        return dict.fromkeys(statistics)  # gaps of one request and neighbouring passes depend on each other
    if found.n < 2:
        return dict.fromkeys(statistics)
    drawn = weighted_statistics(*draw(by_lane), statistics, estimator)
    if by_lane:
        return {name: _interval(values, "lanes", len(lanes)) for name, values in drawn.items()}
    return {name: _interval(values, "requests", found.n) for name, values in drawn.items()}


def _interval(values: Floats, kind: Literal["lanes", "requests"], units: int) -> Noise | None:
    if units < 2 or not len(values):
        return None
    low, high = np.percentile(values, COVERED)
    return Noise(kind, float(low), float(high), len(values), units)


def _sums(counts: npt.NDArray[Any]) -> Floats:
    """Sums of a count per lane over resamples of the lanes; the same lanes in the same resample for every count."""
    drawn = lane_weights(len(counts), SUM_RESAMPLES)
    return np.empty(0) if drawn is None else np.einsum("rl,l->r", drawn, np.asarray(counts, dtype=np.float64))


def resampled(found: Sample, statistics: Sequence[str], estimator: Estimator, by_lane: bool) -> dict[str, Floats]:
    """Statistics of a sample drawn again RESAMPLES times, by whole lanes or by single values; the draws are shared."""
    if found.n < 2:
        return {name: np.empty(0) for name in statistics}
    return weighted_statistics(*draws(found, by_lane), statistics, estimator)


def draws(found: Sample, by_lane: bool) -> Draws:
    """A sample of two values or more drawn again RESAMPLES times; every statistic and estimator reads off the same."""
    random = np.random.default_rng(SEED)
    edges = _edges(found.n)
    sizes = np.diff(edges, append=found.n)
    points = np.add.reduceat(found.values, edges) / sizes
    if by_lane:
        held = _held(found, edges)
        drawn = random.multinomial(len(held), np.full(len(held), 1 / len(held)), RESAMPLES)
        # Not a matrix product of floats: the library behind that one wakes threads, which takes longer than the sums.
        weights = np.einsum("rl,lp->rp", drawn.astype(np.float64), held)
    else:
        weights = random.multinomial(found.n, sizes / found.n, RESAMPLES).astype(np.float64)
    return points, weights


def _edges(n: int) -> npt.NDArray[np.int64]:
    """Where each bin of n sorted values begins: value i falls into bin i * bins // n."""
    bins = min(n, MAX_POINTS)
    return np.asarray(-(-np.arange(bins) * n // bins))


def _lanes_of(found: Sample) -> npt.NDArray[Any]:
    """The lanes of a sample in order."""
    if found.lanes.dtype != np.int16:
        return np.unique(found.lanes)
    return np.flatnonzero(np.bincount(found.lanes + 1)) - 1  # not sorted: millions of values have few lanes


def _held(found: Sample, edges: npt.NDArray[np.int64]) -> Floats:
    """How many values of each lane every bin holds (lane, bin)."""
    member = found.lanes + 1 if found.lanes.dtype == np.int16 else np.unique(found.lanes, return_inverse=True)[1]
    lanes = int(member.max()) + 1
    counts = [np.bincount(member[low:high], minlength=lanes) for low, high in pairwise([*edges, found.n])]
    held = np.stack(counts, axis=1)
    return held[held.any(axis=1)].astype(np.float64)


def weighted_statistics(
    points: Floats, weights: Floats, statistics: Sequence[str], estimator: Estimator
) -> dict[str, Floats]:
    """Statistics of each sample (row) that holds the sorted points as many times as its weights say."""
    upto = np.cumsum(weights, axis=1)
    n = upto[:, -1]
    found = {}
    ranks = {}
    for name in statistics:
        if name in ("mean", "std"):
            mean = weights @ points / n
            found[name] = mean if name == "mean" else np.sqrt(np.maximum(weights @ points**2 / n - mean**2, 0))
        else:
            share = {"min": 0.0, "max": 1.0}[name] if name in ("min", "max") else float(name[1:]) / 100
            ranks[name] = (n - 1) * share
    if ranks:
        found |= zip(ranks, _at(points, upto, np.stack(list(ranks.values())), estimator), strict=True)
    return found


def _at(points: Floats, upto: Floats, rank: Floats, estimator: Estimator) -> Floats:
    """The values at ``rank`` (statistic, sample), where ``upto`` counts the values of a sample up to each point."""
    if estimator is Estimator.NEAREST_RANK:
        return points[_places(upto, np.floor(rank + 0.5))]
    low = np.floor(rank)
    high = np.minimum(low + 1, upto[:, -1] - 1)
    below, above = points[_places(upto, np.concatenate([low, high]))].reshape(2, *rank.shape)
    return np.asarray(below + (above - below) * (rank - low))


def _places(upto: Floats, rank: Floats) -> npt.NDArray[np.intp]:
    """The first point at which a sample counts more values than ``rank``; one search per sample for all ranks."""
    found = [counts.searchsorted(wanted, side="right") for counts, wanted in zip(upto, rank.T, strict=True)]
    return np.stack(found, axis=1)
