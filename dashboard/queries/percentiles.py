"""Distributions by a property of the request, and the requests at their far end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dashboard.metrics import Estimator, Metric, Population
from dashboard.samples import statistic
from dashboard.store import Result, Store
from engine.errors import GapscopeError

EDGES: dict[str, tuple[float, ...]] = {
    "input_tokens": (0, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144),
    "output_tokens": (0, 1, 2, 5, 9, 17, 33, 65, 129, 257, 513, 1025),
    "turn_index": (0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64),
    "cached_share": (0, 0.000001, 0.25, 0.5, 0.75, 0.9, 0.95),
}
"""Lower edges of the buckets of each property; the last bucket has no upper end."""

PROPERTIES: dict[str, str] = {
    "input_tokens": "input length",
    "cached_share": "cached share of the prompt",
    "output_tokens": "output length",
    "turn_index": "turn of the conversation",
}


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket of a property. ``low`` is inside, ``high`` outside (None: no end). Values in the metric's unit.

    ``share`` is the bucket's share of the sample and ``contribution`` what its requests add to the mean of the whole:
    contributions sum to that mean, so a bucket of short outputs shows how much of an unweighted mean it makes.
    """

    label: str
    low: float
    high: float | None
    n: int
    share: float
    contribution: float
    statistics: dict[str, float | None]


def by_bucket(
    store: Store,
    run_id: str,
    metric: Metric,
    population: Population,
    by: str,
    estimator: Estimator = Estimator.LINEAR,
    statistics: Sequence[str] = ("mean", "p50", "p90", "p99"),
) -> tuple[list[Bucket], Result]:
    """The metric by ``input_tokens``, ``cached_share``, ``output_tokens`` or ``turn_index``, without empty buckets.

    Raises:
        GapscopeError: a metric that is not one of requests.
    """
    if metric.source != "requests":
        raise GapscopeError(f"{metric.label} is not a number of a request: expected one such as TTFT, TPOT or E2E.")
    edges = EDGES[by]
    result = store.query(
        "by_bucket",
        {"property": by, "edges": [float(edge) for edge in edges]},
        runs={"run": run_id},
        population=population,
        metric=metric,
        row_cap=None,
    )
    if result.not_recorded or not len(result):
        return [], result
    index = result.array("bucket")
    values = result.array("value").astype(np.float64) * metric.scale
    total = len(values)
    buckets = []
    for bucket in np.unique(index):
        part = values[index == bucket]
        low = edges[bucket - 1] if bucket else float("-inf")
        high = edges[bucket] if bucket < len(edges) else None
        buckets.append(
            Bucket(
                label=bucket_label(by, low, high),
                low=low,
                high=high,
                n=len(part),
                share=len(part) / total,
                contribution=float(part.sum()) / total,
                statistics={name: statistic(part, name, estimator) for name in statistics},
            )
        )
    return buckets, result


def bucket_label(by: str, low: float, high: float | None) -> str:
    """A bucket of a property in words; ``high`` is outside, None without an end."""
    if by == "cached_share":
        if high == EDGES[by][1]:
            return "0 %"
        return f"{low:.0%} to {1 if high is None else high:.0%}".replace("%", " %")
    if high is None:
        return f"{low:,.0f} and more"
    return f"{low:,.0f}" if high == low + 1 else f"{low:,.0f} to {high - 1:,.0f}"


def slowest(store: Store, run_id: str, metric: Metric, population: Population, top: int = 20) -> Result:
    """The requests with the largest value of a metric of requests; ``value`` is in the raw unit (ns for times)."""
    if metric.source != "requests":
        raise GapscopeError(f"{metric.label} is not a number of a request: expected one such as TTFT, TPOT or E2E.")
    return store.query("slowest", {"top": top}, runs={"run": run_id}, population=population, metric=metric)
