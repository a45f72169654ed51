"""Where the time of requests lies between the boundaries of their life, on both sides, in the mean and in the tail.

The stages of a request are those between neighbouring boundaries that every run of the comparison recorded; a boundary
that one of them lacks merges its two stages. From dispatch on they sum to E2E. Times are milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from dashboard.compare.boundary_rows import BOUNDARIES, COMPLETE, SOME_HAVE, Choice, Requests, look
from dashboard.compare.decomposition import clock_note, clock_problem
from dashboard.compare.noise import COVERED, RESAMPLES, Noise, Place, closed_lanes, lane_weights, place, with_redrawing
from dashboard.compare.rows import refused
from dashboard.metrics import METRICS, MS_PER_NS, Estimator, Population
from dashboard.queries.stages import Floats, Ints, pairs
from dashboard.store import Store

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
        return tuple(dict.fromkeys(LAYER[name] for name in inner if name not in SOME_HAVE or name == self.end))

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
    """What a replay adds to a layer or to merged stages, in ms; ``noise`` is that of it when nothing changes."""

    name: str
    value: float
    noise: Noise | None

    @property
    def where(self) -> Place:
        """Its place against the noise."""
        return place(self.noise, self.value)


@dataclass(frozen=True, slots=True)
class _Outline:
    """What is told of the runs as a whole."""

    problem: str
    clocks: str
    apart: dict[int, str]
    boundaries: list[str]
    dropped: list[int]
    counts: list[int]
    sql: str


class Boundaries:
    """The stages of several runs over one population, the measured one first.

    ``until`` is ``ttft`` or ``e2e``: the stages end there. ``repeats`` are other runs of the measured experiment; one
    that did not record what the others did is left out. ``problem`` is a sentence where clocks do not agree or a run
    has a client's alone, ``clocks`` says how well they do where one was moved onto the other, ``apart`` says of runs by
    their place why their first or last token is another moment than that of the measured run. ``dropped`` and
    ``counts`` are the requests of each run that lack a boundary, and that do not. Each answer is worked out once.
    """

    complete = COMPLETE

    def __init__(
        self,
        store: Store,
        run_ids: Sequence[str],
        populations: Sequence[Population],
        until: str = "e2e",
        repeats: Sequence[str] = (),
    ) -> None:
        self.until, self._store, self._runs = until, store, tuple(run_ids)
        self._populations, self._again = tuple(populations), tuple(repeats)
        found: _Outline = self._once(("outline",), self._outline)
        self.problem, self.clocks, self.apart, self.boundaries = (
            found.problem,
            found.clocks,
            found.apart,
            found.boundaries,
        )
        self.dropped, self.counts, self.sql = found.dropped, found.counts, found.sql

    def _once(self, asked: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """An answer about these runs, worked out once."""
        return self._store.remember((*self._key, *asked), make, runs=(*self._runs, *self._again))

    @property
    def _key(self) -> tuple[Any, ...]:
        return ("boundaries", self._runs, self._populations, self.until, self._again)

    @property
    def requests(self) -> Requests:
        """The requests of the runs, looked at where an answer was not worked out before."""

        def make() -> Requests:
            return look(self._store, self._runs, self._populations, self.until, self._again)

        found: Requests = self._store.remember((*self._key, "requests"), make)
        return found

    def _outline(self) -> _Outline:
        store, runs, own = self._store, self._runs, self.requests
        apart = {index: said for index, run in enumerate(runs) if (said := _apart(store, runs[0], run, self.until))}
        counts = [int(chosen.sum()) for chosen in own.chosen[: len(runs)]]
        sql = "\n\n".join(rows.sql for rows in own.rows)
        problem, clocks = clock_problem(store, *runs), clock_note(store, *runs)
        return _Outline(problem, clocks, apart, own.boundaries, own.dropped, counts, sql)

    @property
    def merged(self) -> list[str]:
        """Boundaries that some run lacks."""
        names = list(BOUNDARIES)
        known = (*self.boundaries, *SOME_HAVE)
        return [name for name in names[: names.index(self.boundaries[-1])] if name not in known]

    @property
    def stages(self) -> list[Stage]:
        """The stages that every run tells apart."""
        return [Stage(left, right) for left, right in pairwise(self.boundaries)]

    def tail(self, at: float, estimator: Estimator) -> Choice:
        """Of each run the requests at and above a percentile of what ``until`` names."""
        return Choice(f"{self.until}_ns", at, at=True, estimator=estimator)

    def bucket(self, column: str, low: float, high: float | None) -> Choice:
        """Of each run the requests with a property from ``low`` on and below ``high``."""
        return Choice(column, low, high)

    def group(self, index: int, choose: Choice) -> Group:
        """Means over some of the requests of a run."""

        def make() -> Group:
            spans = self.requests.spans[index][self.requests.flags(index, choose)]
            means = spans.mean(axis=0) * MS_PER_NS if len(spans) else np.full(len(self.stages), np.nan)
            return Group(means, len(spans))

        found: Group = self._once(("group", index, choose), make)
        return found

    def noise(self, index: int, choose: Choice, sums: Floats) -> list[Noise | None]:
        """What changes of sums of stages (sum, stage) are held against, in ms; None where nothing says it.

        The largest deviation of a repeat other than run ``index``, which is judged; and the central 95 % when whole
        lanes of the measured run are drawn again, without repeats or beside few.
        """
        judged = self._runs[index] if self._runs[index] in self._again else ""
        asked = ("noise of sums", judged, choose, sums.shape, tuple(sums.ravel().tolist()))
        found: list[Noise | None] = self._once(asked, lambda: self._noise(judged, choose, sums))
        return found

    def _noise(self, judged: str, choose: Choice, sums: Floats) -> list[Noise | None]:
        requests, own = self.requests, self.group(0, choose)
        places = [at for run_id, at in requests.repeats.items() if run_id != judged]
        others = [found.means for at in places if (found := self.group(at, choose)).n]
        if not others or not own.n:
            return self._drawn(choose, sums)
        widths = np.abs((np.stack(others) - own.means) @ sums.T).max(axis=0)
        told = [Noise("repeats", -float(width), float(width), len(others)) for width in widths]
        drawn = self._drawn(choose, sums) if told and told[0].few else [None] * len(told)
        return [with_redrawing(one, again) for one, again in zip(told, drawn, strict=True)]

    def _drawn(self, choose: Choice, sums: Floats) -> list[Noise | None]:
        """Changes of the sums when whole lanes of the measured run are drawn again."""
        requests, own = self.requests, self.group(0, choose)
        flags = requests.flags(0, choose)
        names, at = np.unique(requests.rows[0].lanes[flags], return_inverse=True)
        weights = lane_weights(len(names)) if closed_lanes(self._store, self._runs[0]) else None
        if weights is None or names[0] < 0:
            return [None] * len(sums)
        spans = requests.spans[0][flags] @ sums.T
        totals = np.stack([np.bincount(at, column, minlength=len(names)) for column in spans.T], axis=1)
        drawn = (weights @ totals) / (weights @ np.bincount(at, minlength=len(names)))[:, None]
        low, high = np.percentile(drawn, COVERED, axis=0) * MS_PER_NS - sums @ own.means
        return [
            Noise("lanes", float(least), float(most), RESAMPLES, len(names))
            for least, most in zip(low, high, strict=True)
        ]

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
        changes, noise = sums @ (right.means - left.means), self.noise(index, choose, sums)
        return [
            Change(name, float(change), own)
            for name, change, own in zip([*names, METRICS[self.until].label], changes, noise, strict=True)
        ]

    @property
    def single_layers(self) -> dict[str, Floats]:
        """Of each layer after dispatch, 1 for its stages and 0 for the others; merged stages stand for their own."""
        names = dict.fromkeys(stage.layer for stage in self.stages if stage.end != "dispatched")
        return {name: np.array([float(stage.layer == name) for stage in self.stages]) for name in names}

    def turns(self, index: int, population: Population, most: int) -> Turns:
        """Of the source-turns that a replay shares with the measured run and whose boundaries both sides know, the
        ``most`` with the largest difference after dispatch."""

        def make() -> Turns:
            own, shared = self.requests, pairs(self._store, self._runs[0], self._runs[index], population)
            known = own.chosen[0][shared.measured] & own.chosen[index][shared.replay]
            left, right = shared.measured[known], shared.replay[known]
            measured, replay = own.spans[0][left] * MS_PER_NS, own.spans[index][right] * MS_PER_NS
            sums = np.array(list(self.single_layers.values())).reshape(-1, len(self.stages))
            total = ((replay - measured) @ sums.T).sum(axis=1)
            largest = np.argsort(-np.abs(total), kind="stable")[:most]
            rows, at = own.rows[0], left[largest]
            names = rows.members[at]
            return Turns(names, rows["input_tokens"][at], measured[largest], replay[largest], len(left), shared.sql)

        found: Turns = self._once(("turns", index, population, most), make)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """Shared source-turns: numbers of their requests in the measured run and the input tokens there, the stages (turn,
    stage) of either side, in ms, and how many turns there are."""

    members: Ints
    input_tokens: Floats
    measured: Floats
    replay: Floats
    n: int
    sql: str


def _apart(store: Store, measured: str, other: str, until: str) -> str:
    """Why the stages of two runs end at other moments, in sentences; the first token bounds a stage of either end."""
    found = (refused(store, measured, other, metric) for metric in dict.fromkeys((until, "ttft")))
    return next((str(said) for said in found if said), "")
