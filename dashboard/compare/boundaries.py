"""Where the time of requests lies between the boundaries of their life, on both sides, in the mean and in the tail.

The stages of a request are those between neighbouring boundaries that every run of the comparison recorded; a boundary
that one of them lacks merges its two stages. From dispatch on they sum to E2E. Times are milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dashboard.compare.decomposition import clock_note, clock_problem
from dashboard.compare.noise import COVERED, closed_lanes, lane_weights
from dashboard.compare.rows import refused
from dashboard.metrics import METRICS, MS_PER_NS, Estimator, Population
from dashboard.queries.stages import NEARLY_ALL, Flags, Floats, Ints, StageRows, mostly, pairs, stage_rows
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

LAYER: dict[str, str] = {
    "dispatched": "client",
    "arrived": "frontend",
    "received": "queue",
    "admitted": "queue",
    "first_pass": "GPU",
    "first_token": "GPU",
    "transferred": "transfer",
    "first_visible": "output",
    "last_token": "GPU",
    "last_visible": "output",
}
"""The layer that the stage before each boundary lies in; one of merged stages lies in all of theirs."""

ALWAYS = ("dispatched", "first_visible", "last_visible")
_ENGINE = ("arrived", "received", "admitted", "first_pass", "first_token", "transferred", "last_token")
_SOME_HAVE = ("transferred",)
"""Boundaries that are told only where they are apart from the one before in some run."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The time between two recorded boundaries."""

    begin: str
    end: str

    @property
    def label(self) -> str:
        """What a chart calls it."""
        return f"{BOUNDARIES[self.begin]} to {BOUNDARIES[self.end]}"

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers that it lies in: one, or several where boundaries are missing."""
        names = list(BOUNDARIES)
        inner = names[names.index(self.begin) + 1 : names.index(self.end) + 1]
        return tuple(dict.fromkeys(LAYER[name] for name in inner if name not in _SOME_HAVE or name == self.end))

    @property
    def layer(self) -> str:
        """Its layers in words."""
        *most, last = self.layers
        return f"{', '.join(most)} and {last}" if most else last


def _told_as(stage: Stage) -> str:
    """What a change of a stage is called: its layer, or where several are merged the stage with its layers."""
    return stage.layer if len(stage.layers) == 1 else f"{stage.label} ({stage.layer} together)"


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Mean stages, in ms, of some requests of one run, and of how many."""

    means: Floats
    n: int


@dataclass(frozen=True, slots=True)
class Change:
    """What a replay adds to a layer or to merged stages, in ms; ``spread``: the largest change when nothing changes."""

    name: str
    value: float
    spread: float | None


Choice = Callable[[int], Flags]
"""Which requests of a run, by its place among the runs."""


class Boundaries:
    """The stages of several runs over one population, the measured one first.

    ``until`` is ``ttft`` or ``e2e``: the stages end there. ``repeats`` are other runs of the measured experiment; one
    that did not record what the others did is left out. ``problem`` is a sentence where clocks do not agree or a run
    has a client's alone, ``clocks`` says how well they do where one was moved onto the other, ``apart`` says of runs by
    their place why their first or last token is another moment than that of the measured run.
    """

    def __init__(
        self,
        store: Store,
        run_ids: Sequence[str],
        populations: Sequence[Population],
        until: str = "e2e",
        repeats: Sequence[str] = (),
    ) -> None:
        self.until, self._store, self._runs = until, store, tuple(run_ids)
        self.problem, self.clocks = clock_problem(store, *run_ids), clock_note(store, *run_ids)
        found = [_apart(store, run_ids[0], run_id, until) for run_id in run_ids]
        self.apart = {index: said for index, said in enumerate(found) if said}
        self.rows = [stage_rows(store, run_id) for run_id in run_ids]
        self._closed = closed_lanes(store, run_ids[0])
        self._moments = [_moments(rows) for rows in self.rows]
        self._members = [members(store, run, own) for run, own in zip(run_ids, populations, strict=True)]
        self.boundaries = self._recorded()
        self._made: dict[int, Floats] = {}
        self._repeats: dict[str, int] = {}
        if not populations[0].matched:
            for run_id in repeats:
                self._add(run_id, stage_rows(store, run_id), populations[0])
        whole = [~np.isnan(self._spans(index)).any(axis=1) for index in range(len(self.rows))]
        self.chosen = [own & known for own, known in zip(self._members, whole, strict=True)]
        self.dropped = [int((own & ~known).sum()) for own, known in zip(self._members, whole, strict=True)]

    def _add(self, run_id: str, rows: StageRows, population: Population) -> None:
        """Take a repeat along, where it recorded every boundary."""
        moments, own = _moments(rows), rows.of(population)
        if all(mostly(~np.isnan(moments[name][own]), NEARLY_ALL) for name in self.boundaries):
            self._repeats[run_id] = len(self.rows)
            self.rows.append(rows)
            self._moments.append(moments)
            self._members.append(own)

    def _recorded(self) -> list[str]:
        """Boundaries up to the last one asked for that nearly all requests of every run have."""
        names = list(BOUNDARIES)
        last = "first_visible" if self.until == "ttft" else "last_visible"
        found = []
        moved = any(bool((rows["transfer_ns"] > 0).any()) for rows in self.rows)
        for name in names[: names.index(last) + 1]:
            if name in _SOME_HAVE and not moved:
                continue
            known = [
                mostly(~np.isnan(moments[name][own]), NEARLY_ALL)
                for moments, own in zip(self._moments, self._members, strict=True)
            ]
            if name in ALWAYS or (all(known) and not (name in _ENGINE and self.problem)):
                found.append(name)
        return found

    @property
    def merged(self) -> list[str]:
        """Boundaries that some run lacks."""
        names = list(BOUNDARIES)
        known = (*self.boundaries, *_SOME_HAVE)
        return [name for name in names[: names.index(self.boundaries[-1])] if name not in known]

    @property
    def stages(self) -> list[Stage]:
        """The stages that every run tells apart."""
        return [Stage(left, right) for left, right in pairwise(self.boundaries)]

    def _spans(self, index: int) -> Floats:
        """The stages of each request of a run (request, stage), in ns; NaN where a boundary of it is unknown."""
        if index not in self._made:
            moments = np.stack([self._moments[index][name] for name in self.boundaries], axis=1)
            self._made[index] = np.diff(moments, axis=1)
        return self._made[index]

    def complete(self, index: int) -> Flags:
        """Every request of the population whose boundaries are known."""
        return self.chosen[index]

    def tail(self, at: float, estimator: Estimator) -> Choice:
        """Of each run the requests at and above a percentile of what ``until`` names."""

        def choose(index: int) -> Flags:
            values, chosen = self.rows[index][f"{self.until}_ns"], self.chosen[index]
            edge = percentile(np.sort(values[chosen]), at, estimator)
            return chosen & (values >= (np.inf if edge is None else edge))

        return choose

    def bucket(self, column: str, low: float, high: float | None) -> Choice:
        """Of each run the requests with a property from ``low`` on and below ``high``."""

        def choose(index: int) -> Flags:
            values = self.rows[index][column]
            return self.chosen[index] & (values >= low) & (values < (np.inf if high is None else high))

        return choose

    def group(self, index: int, choose: Choice) -> Group:
        """Means over some of the requests of a run."""
        spans = self._spans(index)[choose(index)]
        means = spans.mean(axis=0) * MS_PER_NS if len(spans) else np.full(len(self.stages), np.nan)
        return Group(means, len(spans))

    def spread(self, index: int, choose: Choice, sums: Floats) -> Floats | None:
        """How far sums of stages (sum, stage) move when nothing changes, in ms; None where nothing says it.

        The largest deviation of a repeat other than run ``index``, which is judged, else half the central 95 % when
        whole lanes of the measured run are drawn again.
        """
        own = self.group(0, choose)
        places = [at for run_id, at in self._repeats.items() if run_id != self._runs[index]]
        others = [found.means for at in places if (found := self.group(at, choose)).n]
        if others and own.n:
            return np.asarray(np.abs((np.stack(others) - own.means) @ sums.T).max(axis=0))
        flags = choose(0)
        names, at = np.unique(self.rows[0].lanes[flags], return_inverse=True)
        weights = lane_weights(len(names)) if self._closed else None
        if weights is None or names[0] < 0:
            return None
        spans = self._spans(0)[flags] @ sums.T
        totals = np.stack([np.bincount(at, column, minlength=len(names)) for column in spans.T], axis=1)
        drawn = (weights @ totals) / (weights @ np.bincount(at, minlength=len(names)))[:, None]
        low, high = np.percentile(drawn, COVERED, axis=0)
        return np.asarray((high - low) / 2 * MS_PER_NS)

    def layers(self, index: int, choose: Choice) -> list[Change]:
        """What a run adds to each layer after dispatch, the measured run taken off; the total comes last.

        Empty where a side has no request, or they are not comparable.
        """
        if index in self.apart:
            return []
        stages = self.stages
        own = [_told_as(stage) for stage in stages]
        names = list(dict.fromkeys(name for stage, name in zip(stages, own, strict=True) if stage.end != "dispatched"))
        sums = np.array([[float(told == name) for told in own] for name in names])
        sums = np.vstack([sums, sums.sum(axis=0)])
        left, right = self.group(0, choose), self.group(index, choose)
        if not left.n or not right.n:
            return []
        changes, spread = sums @ (right.means - left.means), self.spread(index, choose, sums)
        return [
            Change(name, float(change), None if spread is None else float(spread[at]))
            for at, (name, change) in enumerate(zip([*names, METRICS[self.until].label], changes, strict=True))
        ]

    def turns(self, index: int, measured: str, replay: str, population: Population) -> Turns:
        """The source-turns that a replay shares with the measured run and whose boundaries both sides know."""
        shared = pairs(self._store, measured, replay, population)
        known = self.chosen[0][shared.measured] & self.chosen[index][shared.replay]
        left, right = shared.measured[known], shared.replay[known]
        return Turns(left, self._spans(0)[left] * MS_PER_NS, self._spans(index)[right] * MS_PER_NS, shared.sql)


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """Shared source-turns: rows of the measured run, and the stages (turn, stage) of either side, in ms."""

    rows: Ints
    measured: Floats
    replay: Floats
    sql: str


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


def _apart(store: Store, measured: str, other: str, until: str) -> str:
    """Why the stages of two runs end at other moments, in sentences; the first token bounds a stage of either end."""
    found = (refused(store, measured, other, metric) for metric in dict.fromkeys((until, "ttft")))
    return next((str(said) for said in found if said), "")


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
