"""Sums over a population by lane: what its size, rates, ratios and counts are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from dashboard.metrics import Population
from dashboard.queries.ranges import Span, block_size
from dashboard.store import Store


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """Sums by lane: arrays of equal length, so that lanes can be drawn again.

    ``span`` reaches from the earliest dispatch to the latest visible end of a success; None without one.
    """

    lanes: np.ndarray[Any, Any]
    sums: dict[str, np.ndarray[Any, Any]]
    span: Span | None
    sql: str

    def total(self, name: str) -> int:
        """The sum over lanes."""
        return int(self.sums[name].sum())


def totals(store: Store, run_id: str, population: Population) -> Totals:
    """The sums of a population, one pass over its requests."""
    store.bundle(run_id)

    def add() -> Totals:
        return _add(store, run_id, population)

    rests_on = [one for one in (run_id, population.counterpart) if one]
    found: Totals = store.remember(("totals", run_id, population), add, runs=rests_on)
    return found


def _add(store: Store, run_id: str, population: Population) -> Totals:
    params = {"block_size": block_size(store, run_id)}
    result = store.query("totals", params, runs={"run": run_id}, population=population, keep=False)
    names = [name for name in result.table.column_names if name not in ("lane", "start_ns", "end_ns")]
    sums = {name: np.nan_to_num(result.array(name).astype(np.float64)) for name in names}
    start, end = pc.min(result.table["start_ns"]).as_py(), pc.max(result.table["end_ns"]).as_py()
    span = None if start is None or end is None else Span(start, end)
    return Totals(result.array("lane"), sums, span, result.sql)
