"""How the stages of requests make up each metric, over a population of two runs and the source-turns that they share.

A stage enters only where it is known on both sides of a source-turn. How often it enters a metric is said here, once:
TTFT spans what lies before the first token, its transfer between pools and the lag of that token, E2E all stages and
the lag of the last token, TPOT and pooled ITL what lies between, with the difference of the two lags.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dashboard.metrics import Population
from dashboard.queries.stages import Flags, Floats, Pairs, StageRows, mostly, pairs, stage_rows
from dashboard.store import Store

Columns = dict[str, Floats]

GROUPS: dict[str, str] = {
    "way": "way_ns",
    "queue": "queue_time_ns",
    "pre": "pre_host_ns",
    "post": "post_host_ns",
    "first": "first_lag_ns",
    "last": "last_lag_ns",
    "reuse": "uncached_tokens",
}
"""Stages that are known together, and a column that is NaN where they are not."""
_ACROSS = ("way", "first", "last")
"""What stands between the clocks of client and engine."""
_VALUE = {"ttft": "ttft_ns", "e2e": "e2e_ns", "tpot": "tpot_ns", "itl": "streamed_ns"}


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """What one metric is made of.

    ``complete``: value and n by lane of all successes of either side. ``both``: the same over shared source-turns,
    with the sums of each stage. ``known`` says of groups of stages whether most shared source-turns know them on both
    sides (those of the others count as unknown); ``shared`` and ``unsplit`` count source-turns, ``successes``
    what has a value on either side.
    """

    metric: str
    complete: tuple[Columns, Columns]
    both: tuple[Columns, Columns]
    known: dict[str, bool]
    reuse_known: bool
    shared: int
    successes: tuple[int, int]
    unsplit: int

    @property
    def transfers(self) -> bool:
        """Whether any of these requests went from one pool of workers to another."""
        return any(bool(side["transfer"].any()) for side in self.both)

    @property
    def from_dispatch(self) -> bool:
        """Whether the metric begins at the dispatch."""
        return self.metric in ("ttft", "e2e")


class Shared:
    """Two runs over one population: their successes, the source-turns that they share, and the lanes of either."""

    def __init__(self, store: Store, measured: str, replay: str, population: Population, one_clock: bool) -> None:
        self.sides: tuple[StageRows, StageRows] = (stage_rows(store, measured), stage_rows(store, replay))
        self.pairs: Pairs = pairs(store, measured, replay, population)
        self._turns = (self.pairs.measured, self.pairs.replay)
        chosen = [rows.of(population) for rows in self.sides]
        if population.matched:
            chosen = [_only(flags, turns) for flags, turns in zip(chosen, self._turns, strict=True)]
        self._chosen = chosen
        used = [rows.lanes[flags] for rows, flags in zip(self.sides, chosen, strict=True)]
        self.lanes = np.unique(np.concatenate(used))
        self._known = {name: self._recorded(column) for name, column in GROUPS.items()}
        if not one_clock:
            self._known |= {name: np.zeros(len(self.pairs.measured), np.bool_) for name in _ACROSS}

    @property
    def sql(self) -> str:
        """What was asked."""
        rows = [f"-- {name}\n{side.sql}" for name, side in zip(("measured", "replay"), self.sides, strict=True)]
        return "\n\n".join([*rows, f"-- shared source-turns\n{self.pairs.sql}"])

    def _recorded(self, column: str) -> Flags:
        left, right = (rows[column][turns] for rows, turns in zip(self.sides, self._turns, strict=True))
        return ~np.isnan(left) & ~np.isnan(right)

    def scope(self, metric: str) -> Scope:
        """The sums of one metric, by lane; lanes of shared source-turns are the measured ones."""
        value = _VALUE[metric]
        defined = self._recorded(value)
        if metric == "itl":
            for rows, turns in zip(self.sides, self._turns, strict=True):
                defined &= rows["visible_tokens"][turns] > 1
        has = {name: flags[defined] & mostly(flags[defined]) for name, flags in self._known.items()}
        pre, post = metric in ("ttft", "e2e"), metric != "ttft"
        every = np.ones(int(defined.sum()), np.bool_)
        engine = (has["pre"] if pre else every) & (has["post"] if post else every)
        lags = {"ttft": has["first"], "e2e": has["last"]}.get(metric, has["first"] & has["last"])
        whole = engine & lags & (has["way"] & has["queue"] if pre else every)
        passes = (has["pre"] & pre) | (has["post"] & post)
        at = np.searchsorted(self.lanes, self.sides[0].lanes[self.pairs.measured[defined]])
        both = [
            self._by_lane(_stages(rows, turns[defined], metric, has, lags), at)
            for rows, turns in zip(self.sides, self._turns, strict=True)
        ]
        valued = [self._valued(rows, flags, metric) for rows, flags in zip(self.sides, self._chosen, strict=True)]
        complete = [self._complete(rows, flags, metric) for rows, flags in zip(self.sides, valued, strict=True)]
        return Scope(
            metric,
            (complete[0], complete[1]),
            (both[0], both[1]),
            {
                "way": bool(has["way"].any()),
                "queue": bool(has["queue"].any()),
                "passes": bool(passes.any()),
                "output": bool(lags.any()),
            },
            bool(passes.any()) and bool(has["reuse"][passes].all()),
            len(every),
            (int(valued[0].sum()), int(valued[1].sum())),
            int((~whole).sum()),
        )

    def _valued(self, rows: StageRows, chosen: Flags, metric: str) -> Flags:
        """Which successes have a value."""
        defined = chosen & ~np.isnan(rows[_VALUE[metric]])
        return defined & (rows["visible_tokens"] > 1) if metric == "itl" else defined

    def _complete(self, rows: StageRows, defined: Flags, metric: str) -> Columns:
        """Value and n of every success with a value."""
        columns = {"n": _weight(rows, metric)[defined], "value": rows[_VALUE[metric]][defined]}
        return self._by_lane(columns, np.searchsorted(self.lanes, rows.lanes[defined]))

    def _by_lane(self, columns: Columns, at: npt.NDArray[np.intp]) -> Columns:
        size = len(self.lanes)
        return {name: np.bincount(at, column, minlength=size).astype(np.float64) for name, column in columns.items()}


def _stages(rows: StageRows, at: npt.NDArray[np.int64], metric: str, has: dict[str, Flags], lags: Flags) -> Columns:
    """The stages of a metric, request by request; zero where a side does not know them."""

    def known(column: str, group: str) -> Floats:
        return np.where(has[group], rows[column][at], 0.0)

    pre, post = metric in ("ttft", "e2e"), metric != "ttft"
    per = 1 / (rows["output_tokens"][at] - 1) if metric == "tpot" else np.ones(len(at))

    def engine(name: str) -> Floats:
        found = np.zeros(len(at))
        if pre:
            found += known(f"pre_{name}_ns", "pre")
        if post:
            found += known(f"post_{name}_ns", "post") * per
        return found

    # Prompt tokens computed for a request; those of a preemption after the first token belong to what follows it.
    early = rows["pre_waiting_ns"][at] > 0
    again = rows["recomputed_tokens"][at]
    tokens = np.zeros(len(at))
    if pre:
        tokens += np.where(has["pre"] & has["reuse"], rows["uncached_tokens"][at] + np.where(early, again, 0), 0)
    if post:
        tokens += np.where(has["post"] & has["reuse"] & ~early, again, 0) * per
    first, last = {"ttft": (1, 0), "e2e": (0, 1)}.get(metric, (-1, 1))
    lag = first * np.nan_to_num(rows["first_lag_ns"][at]) + last * np.nan_to_num(rows["last_lag_ns"][at])
    return {
        "n": _weight(rows, metric)[at],
        "value": rows[_VALUE[metric]][at],
        "client": known("way_ns", "way") if pre else np.zeros(len(at)),
        "queueing": engine("waiting") + (known("wait_ns", "way") + known("queue_time_ns", "queue") if pre else 0),
        **{name: engine(name) for name in ("prefill", "mixed", "decode", "host")},
        "transfer": known("transfer_ns", "pre") if pre else np.zeros(len(at)),
        "output": np.where(lags, lag, 0.0) * per,
        "tokens": tokens,
    }


def _weight(rows: StageRows, metric: str) -> Floats:
    """How many values a request adds to the mean."""
    return rows["visible_tokens"] - 1 if metric == "itl" else np.ones(len(rows))


def _only(chosen: Flags, turns: npt.NDArray[np.int64]) -> Flags:
    kept = np.zeros(len(chosen), np.bool_)
    kept[turns] = True
    return chosen & kept
