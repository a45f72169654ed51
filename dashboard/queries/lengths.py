"""Errors of a metric over shared source-turns, by how long their prompts and outputs are."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from dashboard.metrics import Metric, Population
from dashboard.queries.cohort import not_joined
from dashboard.queries.percentiles import EDGES
from dashboard.store import Result, Store

MOST_TURNS = 500
"""Source-turns of one cell that are listed."""


def pair_errors(store: Store, measured: str, replay: str, metric: Metric, population: Population) -> Result:
    """Columns ``input_bucket, output_bucket, turns, median_gap, gap_of_means, measured, replay``, one row per cell that
    holds a turn; values in the raw unit of ``metric``, one of requests.

    ``median_gap`` is the median of replay / measured - 1 over the turns, ``gap_of_means`` that of their means. A bucket
    is the number of ``EDGES`` at or below the measured length. A sentence and no rows where the runs cannot be joined.
    """
    return _ask(store, "pair_errors", measured, replay, metric, population, {})


def pair_turns(
    store: Store, measured: str, replay: str, metric: Metric, population: Population, cell: tuple[int, int]
) -> Result:
    """The source-turns of one cell (buckets of input and output length), at most ``MOST_TURNS``."""
    params = {"input_bucket": cell[0], "output_bucket": cell[1], "most": MOST_TURNS}
    return _ask(store, "pair_turns", measured, replay, metric, population, params)


def _ask(
    store: Store,
    name: str,
    measured: str,
    replay: str,
    metric: Metric,
    population: Population,
    params: dict[str, Any],
) -> Result:
    if said := not_joined(store, measured, replay):
        return Result(pa.table({}), "", not_recorded=said)
    edges = {
        "input_edges": [float(edge) for edge in EDGES["input_tokens"]],
        "output_edges": [float(edge) for edge in EDGES["output_tokens"]],
    }
    runs = {"measured": measured, "replay": replay}
    return store.query(name, edges | params, runs=runs, population=population, metric=metric, row_cap=None)
