"""The requests of runs compared between the boundaries of their life, and which of them a question is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dashboard.compare.decomposition import clock_problem
from dashboard.metrics import Estimator, Population
from dashboard.queries.stages import NEARLY_ALL, Flags, Floats, StageRows, mostly, pairs, stage_rows
from dashboard.samples import percentile
from dashboard.store import Store

BOUNDARIES: dict[str, str] = {
    "scheduled": "scheduled",
    "dispatched": "dispatched",
    "arrived": "at the engine",
    "received": "received",
    "admitted": "admitted",
    "first_pass": "first pass",
    "first_token": "first token computed",
    "transferred": "KV transferred",
    "first_visible": "first visible",
    "last_token": "last token computed",
    "last_visible": "last visible",
}
"""The boundaries in the order of a request's life, and what they are called."""

ALWAYS = ("dispatched", "first_visible", "last_visible")
_ENGINE = ("arrived", "received", "admitted", "first_pass", "first_token", "transferred", "last_token")
SOME_HAVE = ("transferred",)
"""Boundaries that are told only where they are apart from the one before in some run."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which requests of a run: those with a property from ``low`` on and below ``high``; all without a ``column``.

    ``at`` says that ``low`` is a percentile of the column over the run's own requests, by ``estimator``.
    """

    column: str = ""
    low: float = 0.0
    high: float | None = None
    at: bool = False
    estimator: Estimator = Estimator.LINEAR


COMPLETE = Choice()
"""Every request of the population whose boundaries are known."""


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """The requests of the runs, repeats last: their rows, stages (request, stage) in ns, and which of them count.

    A stage is NaN where a boundary of it is unknown. ``repeats`` are the places of the repeats that recorded what the
    others did, ``dropped`` counts members of the population that lack a boundary.
    """

    boundaries: list[str]
    repeats: dict[str, int]
    rows: list[StageRows]
    spans: list[Floats]
    chosen: list[Flags]
    dropped: list[int]

    def flags(self, index: int, choice: Choice) -> Flags:
        """The requests of a run that are chosen."""
        chosen = self.chosen[index]
        if not choice.column:
            return chosen
        values = self.rows[index][choice.column]
        if not choice.at:
            return chosen & (values >= choice.low) & (values < (np.inf if choice.high is None else choice.high))
        edge = percentile(np.sort(values[chosen]), choice.low, choice.estimator)
        return chosen & (values >= (np.inf if edge is None else edge))


def look(
    store: Store, run_ids: Sequence[str], populations: Sequence[Population], until: str, others: Sequence[str]
) -> Requests:
    """The requests of runs, the measured one first, up to the boundary ``until`` ends at.

    Of the ``others``, repeats of the measured run, those come last that recorded every boundary.
    """
    rows = [stage_rows(store, run_id) for run_id in run_ids]
    moments = [_moments(one) for one in rows]
    inside = [members(store, run, own) for run, own in zip(run_ids, populations, strict=True)]
    boundaries = _recorded(until, rows, moments, inside, bool(clock_problem(store, *run_ids)))
    repeats: dict[str, int] = {}
    for run_id in () if populations[0].matched else others:
        one = stage_rows(store, run_id)
        known, own = _moments(one), one.of(populations[0])
        if all(mostly(~np.isnan(known[name][own]), NEARLY_ALL) for name in boundaries):
            repeats[run_id] = len(rows)
            rows.append(one)
            moments.append(known)
            inside.append(own)
    spans = [np.diff(np.stack([known[name] for name in boundaries], axis=1), axis=1) for known in moments]
    whole = [~np.isnan(one).any(axis=1) for one in spans]
    chosen = [own & known for own, known in zip(inside, whole, strict=True)]
    dropped = [int((own & ~known).sum()) for own, known in zip(inside, whole, strict=True)]
    return Requests(boundaries, repeats, rows, spans, chosen, dropped)


def _recorded(
    until: str, rows: list[StageRows], moments: list[dict[str, Floats]], inside: list[Flags], client_only: bool
) -> list[str]:
    """Boundaries up to the last one asked for that nearly all requests of every run have."""
    names = list(BOUNDARIES)
    last = "first_visible" if until == "ttft" else "last_visible"
    found = []
    moved = any(bool((one["transfer_ns"] > 0).any()) for one in rows)
    for name in names[: names.index(last) + 1]:
        if name in SOME_HAVE and not moved:
            continue
        known = [mostly(~np.isnan(one[name][own]), NEARLY_ALL) for one, own in zip(moments, inside, strict=True)]
        if name in ALWAYS or (all(known) and not (name in _ENGINE and client_only)):
            found.append(name)
    return found


def members(store: Store, run_id: str, population: Population) -> Flags:
    """Which rows of a run are of a population, matched ones included."""
    rows = stage_rows(store, run_id)
    chosen = rows.of(population)
    if population.counterpart is None:
        return chosen
    shared = pairs(store, run_id, population.counterpart, population)
    kept = np.zeros(len(rows), np.bool_)
    kept[shared.measured] = True
    return chosen & kept


def _moments(rows: StageRows) -> dict[str, Floats]:
    """The boundaries of each request, in ns from its dispatch; NaN where one is unknown."""
    zero = np.zeros(len(rows))
    admitted = rows["path_ns"] + rows["queue_time_ns"]
    first_token = admitted + rows["pre_ns"]
    # A last token may be computed before the first is visible, or show no text: it counts from there, and up to there.
    last_token = np.clip(rows["ttft_ns"] - rows["first_lag_ns"] + rows["post_ns"], rows["ttft_ns"], rows["e2e_ns"])
    return {
        "scheduled": -rows["dispatch_lag_ns"],
        "dispatched": zero,
        "arrived": rows["way_ns"],
        "received": rows["path_ns"],
        "admitted": admitted,
        "first_pass": admitted + np.minimum(rows["first_pass_ns"], rows["pre_ns"]),
        "first_token": first_token,
        "transferred": first_token + rows["transfer_ns"],
        "first_visible": rows["ttft_ns"],
        "last_token": last_token,
        "last_visible": rows["e2e_ns"],
    }
