"""One number of one run: a statistic of a sample, or a measure of the whole, with its n and why it may be missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dashboard.metrics import MEASURES, METRICS, STATISTICS, Direction, Estimator, Population, Window
from dashboard.queries import coverage, passes
from dashboard.queries.ranges import block_size, few_ends, gpus, no_times, population_span, without_end
from dashboard.queries.totals import Totals, totals
from dashboard.samples import sample
from dashboard.store import Store
from engine.errors import GapscopeError

_WINDOWS = {"fixed": "fixed window", "observed_span": "observed span", "completions": "window of completions"}


@dataclass(frozen=True, slots=True)
class Key:
    """Which number: a metric and a statistic of its sample, or a measure and its variant. Text form ``ttft.p90``."""

    metric: str
    statistic: str

    @classmethod
    def parse(cls, text: str) -> Key:
        """Read ``metric.statistic``.

        Raises:
            GapscopeError: no such metric or statistic; those that exist are named.
        """
        metric, _, statistic = text.partition(".")
        if metric in METRICS:
            if statistic not in STATISTICS:
                raise GapscopeError(
                    f"Number {text!r}: {metric} has no statistic {statistic!r}; "
                    f"expected one of {', '.join(STATISTICS)}."
                )
        elif metric not in MEASURES:
            raise GapscopeError(
                f"Number {text!r}: unknown metric {metric!r}; expected one of {', '.join([*METRICS, *MEASURES])}."
            )
        elif statistic not in MEASURES[metric].statistics:
            raise GapscopeError(
                f"Number {text!r}: {metric} has no variant {statistic!r}; "
                f"expected one of {', '.join(MEASURES[metric].statistics)}."
            )
        return cls(metric, statistic)

    def __str__(self) -> str:
        return f"{self.metric}.{self.statistic}"

    @property
    def label(self) -> str:
        """The metric in words."""
        return METRICS[self.metric].label if self.metric in METRICS else MEASURES[self.metric].label

    @property
    def words(self) -> str:
        """The number in words: ``TTFT mean``, ``Requests per second over the fixed window``."""
        if self.metric in MEASURES and self.statistic in _WINDOWS:
            return f"{self.label} per second over the {_WINDOWS[self.statistic]}"
        return f"{self.label} {self.statistic.replace('_', ' ')}"

    @property
    def unit(self) -> str:
        """Unit of the value."""
        return METRICS[self.metric].unit if self.metric in METRICS else MEASURES[self.metric].unit

    @property
    def direction(self) -> Direction:
        """Which side of a gap is better."""
        return METRICS[self.metric].direction if self.metric in METRICS else MEASURES[self.metric].direction

    @property
    def definition(self) -> str:
        """What it means."""
        return METRICS[self.metric].definition if self.metric in METRICS else MEASURES[self.metric].definition


@dataclass(frozen=True, slots=True)
class Number:
    """A value in the unit of its key, the count it rests on, and a sentence where it is None.

    ``undefined`` counts successes of the population without a value; ``supported`` is false for a percentile of too
    few values. ``note`` says what a value that is there leaves out.
    """

    value: float | None
    n: int
    why: str | None = None
    undefined: int = 0
    supported: bool = True
    note: str = ""


def number(
    store: Store, run_id: str, key: Key, population: Population, estimator: Estimator = Estimator.LINEAR
) -> Number:
    """The number of a run; None with a sentence where it is undefined or was not recorded.

    Raises:
        GapscopeError: the run is absent or altered.
    """
    if key.metric in METRICS:
        return _of_sample(store, run_id, key, population, estimator)
    if "requests" not in store.tables(run_id):
        return Number(None, 0, "no requests recorded")
    if key.metric in ("request_rate", "output_rate", "total_rate", "output_rate_per_gpu"):
        return _rate(store, run_id, key, population)
    if key.metric == "hit_ratio":
        return _hit_ratio(store, run_id, key, population)
    if key.metric == "preemptions":
        return _preemptions(store, run_id, key, population)
    if key.metric in ("pass_count", "pass_time"):
        return _passes(store, run_id, key, population)
    if key.metric == "coverage":
        return _coverage(store, run_id, key)
    return _in_flight(store, run_id, key, population)


def _of_sample(store: Store, run_id: str, key: Key, population: Population, estimator: Estimator) -> Number:
    found = sample(store, run_id, METRICS[key.metric], population)
    why = found.not_recorded
    if why is None and not found.n:
        why = f"no value among {found.undefined} successes" if found.undefined else "empty sample"
    value = found.statistic(key.statistic, estimator)
    return Number(value, found.n, why, found.undefined, found.supports(key.statistic))


@dataclass(frozen=True, slots=True)
class RateParts:
    """Numerators of a rate by lane, its window in seconds, and how many requests it counts.

    ``note`` says how many of them have no token count: they add nothing to a rate of tokens.
    """

    counts: np.ndarray[Any, Any]
    seconds: float
    n: int
    why: str | None = None
    note: str = ""


def rate_parts(store: Store, run_id: str, key: Key, population: Population) -> RateParts:
    """What a rate is made of in the window that its statistic names."""
    nothing = np.zeros(0)
    window = Window(key.statistic)
    span = population_span(store, run_id, population)
    if window is not Window.FIXED and (said := no_times(store, run_id)):
        return RateParts(nothing, 0.0, 0, said)
    if window is Window.COMPLETIONS:
        if population.matched:
            return RateParts(nothing, 0.0, 0, "completions of any phase are not defined on a matched subset")
        if span is None:
            return RateParts(nothing, 0.0, 0, f"the run has no phase {population.phase}")
        result = store.query("completions", {**span.params(), "role": population.role}, runs={"run": run_id})
        sums = {
            name: np.nan_to_num(result.array(name).astype(np.float64))
            for name in ("ok", "input_tokens", "output_tokens", "output_recorded", "tokens_recorded")
        }
    else:
        found = totals(store, run_id, population)
        sums = found.sums
        if window is Window.OBSERVED_SPAN:
            span = found.span
            if span is None:
                return RateParts(nothing, 0.0, 0, "no successful request")
        elif span is None:
            return RateParts(nothing, 0.0, 0, f"the run has no phase {population.phase}")
    if not span.length_ns:
        return RateParts(nothing, 0.0, 0, "the window has no length")
    counts = {
        "request_rate": sums["ok"],
        "total_rate": sums["input_tokens"] + sums["output_tokens"],
    }.get(key.metric, sums["output_tokens"])
    seconds = span.length_ns * 1e-9
    if key.metric == "output_rate_per_gpu":
        count = gpus(store, run_id)
        if count is None:
            return RateParts(nothing, 0.0, 0, "the identity counts no GPUs")
        seconds *= count
    n = int(sums["ok"].sum())
    if key.metric == "request_rate":
        return RateParts(counts, seconds, n)
    unknown = n - int(sums["tokens_recorded" if key.metric == "total_rate" else "output_recorded"].sum())
    if n and unknown == n:
        return RateParts(nothing, 0.0, 0, "no token counts recorded")
    return RateParts(counts, seconds, n, note=_without_tokens(unknown, n))


def _without_tokens(unknown: int, n: int) -> str:
    return f"{unknown:,} of {n:,} successes have no token count; the rate is a lower bound" if unknown else ""


def _rate(store: Store, run_id: str, key: Key, population: Population) -> Number:
    parts = rate_parts(store, run_id, key, population)
    if parts.why:
        return Number(None, parts.n, parts.why)
    return Number(float(parts.counts.sum()) / parts.seconds, parts.n, note=parts.note)


def hit_parts(key: Key, found: Totals) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Reused tokens and what they are divided by, by lane."""
    whole = "prompt_tokens" if key.statistic == "tokens" else "reusable_tokens"
    return found.sums["cached_tokens"], found.sums[whole]


def _hit_ratio(store: Store, run_id: str, key: Key, population: Population) -> Number:
    if key.statistic == "reusable" and block_size(store, run_id) is None:
        return Number(None, 0, "the identity knows no block size")
    found = totals(store, run_id, population)
    reused, whole = hit_parts(key, found)
    n = found.total("reuse_recorded")
    if not whole.sum():
        return Number(None, n, "no reused tokens recorded" if not n else "no prompt tokens")
    return Number(float(reused.sum() / whole.sum()), n)


def _preemptions(store: Store, run_id: str, key: Key, population: Population) -> Number:
    found = totals(store, run_id, Population("all") if key.statistic == "capture" else population)
    n = found.total("preemptions_recorded")
    if not n:
        return Number(None, 0, "no preemptions recorded")
    return Number(float(found.total("preemptions")), n)


def _passes(store: Store, run_id: str, key: Key, population: Population) -> Number:
    result = passes.classes(store, run_id, population)
    if result.not_recorded:
        return Number(None, 0, result.not_recorded)
    rows = {row["class"]: row for row in result.rows()}
    n = sum(row["passes"] for name, row in rows.items() if name != "idle")
    if not n:
        return Number(None, 0, "no passes in the phase")
    row = rows.get(key.statistic)
    column = "passes" if key.metric == "pass_count" else "time_share"
    return Number(float(row[column]) if row else 0.0, n)


def _coverage(store: Store, run_id: str, key: Key) -> Number:
    if store.bundle(run_id).kind != "replay":
        return Number(None, 0, "only a replay puts queries to a timing model")
    found = coverage.shares(store, run_id)
    n = found.n_passes if key.statistic == "passes" else found.n_queries
    return Number(found.inside(key.statistic), n, None if n else found.not_recorded or "no coverage recorded")


def _in_flight(store: Store, run_id: str, key: Key, population: Population) -> Number:
    if key.statistic == "little":
        rate = number(store, run_id, Key("request_rate", "fixed"), population)
        mean = number(store, run_id, Key("e2e", "mean"), population)
        if rate.value is None or mean.value is None:
            return Number(None, 0, rate.why or mean.why)
        return Number(rate.value * mean.value / 1000, mean.n)
    span = population_span(store, run_id, population)
    if span is None or not span.length_ns:
        return Number(None, 0, f"the run has no phase {population.phase}")
    if said := no_times(store, run_id):
        return Number(None, 0, said)
    row = store.query("mean_in_flight", span.params(), runs={"run": run_id}).one()
    known, unknown = row["requests"], row["without_end"]
    why = None if known or unknown else "no request in the window"
    if unknown > known:
        why = few_ends(unknown, known + unknown)
    return Number(row["in_flight"], known, why, note=without_end(unknown, "mean"))
