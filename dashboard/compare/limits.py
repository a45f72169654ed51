"""Limits of latency metrics, as a service level objective sets them, and the share of values within them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dashboard.compare.noise import Noise
from dashboard.compare.rows import refused
from dashboard.metrics import METRICS, Metric, Population
from dashboard.samples import Sample, sample
from dashboard.store import Store
from engine.errors import GapscopeError

LIMITED = tuple(name for name, metric in METRICS.items() if metric.unit == "ms")
"""Metrics that a limit can be set on."""
_LIMIT = re.compile(r"(\w+)<=(\d+(?:\.\d+)?)(ms|s)?")


@dataclass(frozen=True, slots=True)
class Limit:
    """No value of ``metric`` above ``ms``."""

    metric: Metric
    ms: float

    @property
    def text(self) -> str:
        """As it is written."""
        return f"{self.metric.name}<={self.ms:g}ms"


def parse_limits(text: str) -> list[Limit]:
    """Limits such as ``ttft<=500 tpot<=50ms e2e<=2s``, separated by spaces or semicolons; a bare number is in ms.

    Raises:
        GapscopeError: no limit, or of no latency metric.
    """
    found = []
    for part in text.replace(";", " ").split():
        match = _LIMIT.fullmatch(part)
        if not match or match[1] not in LIMITED:
            raise GapscopeError(
                f"Limit {part[:40]!r}: expected a metric, <= and a time, as in ttft<=500ms or e2e<=2s; metrics are "
                f"{', '.join(LIMITED)}."
            )
        found.append(Limit(METRICS[match[1]], float(match[2]) * (1e3 if match[3] == "s" else 1.0)))
    return found


@dataclass(frozen=True, slots=True)
class Within:
    """Share of the values of both sides that are within a limit; None where a side has none.

    ``noise`` is that of the difference: the largest one of a repeat, None without repeats; ``refused`` says why the
    metric is another quantity on the other side.
    """

    limit: Limit
    measured: float | None
    replay: float | None
    n: tuple[int, int]
    noise: Noise | None
    refused: str = ""

    @property
    def difference(self) -> float | None:
        """Replay less measured, as a share; None where a side has no value or they are not comparable."""
        if self.refused or self.measured is None or self.replay is None:
            return None
        return self.replay - self.measured


def within(
    store: Store, pair: tuple[str, str], limits: Sequence[Limit], population: Population, repeats: Sequence[str]
) -> list[Within]:
    """How much of either side is within each limit; ``repeats`` are other runs of the measured experiment."""
    measured, replay = pair
    found = []
    for limit in limits:
        left = sample(store, measured, limit.metric, population.for_side(replay))
        right = sample(store, replay, limit.metric, population.for_side(measured))
        base = share(left, limit.ms)
        others = [] if population.matched else [sample(store, one, limit.metric, population) for one in repeats]
        spreads = [
            abs(value - base) for one in others if (value := share(one, limit.ms)) is not None and base is not None
        ]
        said = refused(store, measured, replay, limit.metric.name)
        found.append(
            Within(
                limit,
                base,
                share(right, limit.ms),
                (left.n, right.n),
                Noise("repeats", -max(spreads), max(spreads), len(spreads)) if spreads else None,
                str(said) if said else "",
            )
        )
    return found


def share(values: Sample, limit: float) -> float | None:
    """Share of the values at or below a limit in the unit of the metric; None of an empty sample."""
    return float(np.searchsorted(values.values, limit, side="right")) / values.n if values.n else None
