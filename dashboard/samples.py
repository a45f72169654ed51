"""Sorted samples and what is read off them: percentiles, ECDFs, tails.

One sorted array per (run, metric, population) answers every question about a distribution, so it is computed once.
Values are in the unit of the screen; an empty sample answers None with n = 0, never 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dashboard.metrics import STATISTICS, Estimator, Metric, Population
from dashboard.store import Store

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.signedinteger[Any]]

ECDF_POINTS = 300
_TAIL_POINTS = 100
_PPM = 10_000  # percent are held as whole 1/10,000ths, so that a rank that is exactly a half is seen as one


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Sorted values of a metric, with the lane that each came from (-1: none recorded).

    ``of`` names the requests whose values they are: samples of populations that hold the same ones are the same.

    ``undefined`` counts successful requests of the population that have no value; ``not_recorded`` is a sentence when
    the run lacks the table that holds them.
    """

    values: Floats
    lanes: Ints
    undefined: int
    sql: str
    not_recorded: str | None = None
    of: str = ""

    @property
    def n(self) -> int:
        """Number of values."""
        return len(self.values)

    def percentile(self, p: float, estimator: Estimator = Estimator.LINEAR) -> float | None:
        """The p-th percentile, p in 0..100; None of an empty sample."""
        return percentile(self.values, p, estimator)

    def percentiles(self, ps: Sequence[float] | Floats, estimator: Estimator = Estimator.LINEAR) -> Floats:
        """Several percentiles; NaN of an empty sample."""
        return np.array([np.nan if (v := self.percentile(float(p), estimator)) is None else v for p in ps])

    def statistic(self, name: str, estimator: Estimator = Estimator.LINEAR) -> float | None:
        """One of ``metrics.STATISTICS`` by name."""
        return statistic(self.values, name, estimator)

    def supports(self, name: str) -> bool:
        """Whether a percentile rests on at least 1/(1-p) values (below the median 1/p); other statistics on one."""
        if not name.startswith("p"):
            return self.n > 0
        p = float(name[1:])
        tail = round(min(p, 100 - p) * _PPM)
        return self.n * tail >= 100 * _PPM

    def ecdf(self, points: int = ECDF_POINTS) -> tuple[Floats, Floats]:
        """At most ``points`` steps (x, share of values <= x): even in share to 0.99, logarithmic in the tail."""
        n = self.n
        if n <= points:
            return self.values, np.arange(1, n + 1) / max(n, 1)
        body = np.linspace(1 / n, 0.99, points - _TAIL_POINTS, endpoint=False)
        tail = 1 - np.geomspace(0.01, 1 / n, _TAIL_POINTS - 1)
        rank = np.ceil(np.concatenate([body, tail]) * n - 1e-9).astype(np.int64)
        rank = np.unique(np.clip(np.append(rank, n), 1, n))
        return self.values[rank - 1], rank / n

    def tail_mass(self, share: float) -> float | None:
        """What the largest ``share`` of the values adds to the mean; the value at the edge counts in part."""
        if not self.n:
            return None
        take = share * self.n
        whole = min(int(take), self.n)
        mass = float(self.values[self.n - whole :].sum())
        if whole < self.n:
            mass += (take - whole) * float(self.values[self.n - whole - 1])
        return mass / self.n


def narrow(numbers: npt.NDArray[Any]) -> Ints:
    """Whole numbers in as few bytes as hold them: a large sample has millions of lanes."""
    largest = int(numbers.max(initial=0))
    for kind in (np.int16, np.int32):
        if largest < np.iinfo(kind).max:
            return numbers.astype(kind)
    return numbers.astype(np.int64)


def percentile(values: Floats, p: float, estimator: Estimator) -> float | None:
    """The p-th percentile of sorted values; None where there are none."""
    n = len(values)
    if n == 0:
        return None
    scaled = (n - 1) * round(p * _PPM)
    whole = 100 * _PPM
    if estimator is Estimator.NEAREST_RANK:
        return float(values[(2 * scaled + whole) // (2 * whole)])
    rank, rest = divmod(scaled, whole)
    low = float(values[rank])
    return low if rest == 0 else low + (float(values[rank + 1]) - low) * (rest / whole)


def statistic(values: Floats, name: str, estimator: Estimator = Estimator.LINEAR) -> float | None:
    """A statistic of sorted values by name; None where there are none."""
    if name not in STATISTICS and not name.startswith("p"):
        raise ValueError(f"unknown statistic {name}")
    if len(values) == 0:
        return None
    if name == "mean":
        return float(values.mean())
    if name == "std":
        return float(values.std())
    if name == "min":
        return float(values[0])
    if name == "max":
        return float(values[-1])
    return percentile(values, float(name[1:]), estimator)


def sample(store: Store, run_id: str, metric: Metric, population: Population) -> Sample:
    """The sorted sample of ``metric`` over the successful requests (or the passes) of ``population``."""
    store.bundle(run_id)
    if metric.source in _ONCE_PER_RUN:
        return _of_members(store, run_id, metric, population)
    key = ("sample", run_id, metric.name, population)
    made: Sample = store.remember(key, lambda: _make(store, run_id, metric, population), runs=(run_id,))
    return made


def sample_sql(store: Store, run_id: str, metric: Metric, population: Population) -> str:
    """The SQL of :func:`sample`, where its values are not asked for."""
    if metric.source not in _ONCE_PER_RUN:
        return sample(store, run_id, metric, population).sql
    runs, whole = {"run": run_id}, Population("all")
    members = store.text("sample_members", runs=runs, population=population)
    return f"{members}\n\n{store.text(f'sample_{metric.source}', runs=runs, population=whole, metric=metric)}"


def _make(store: Store, run_id: str, metric: Metric, population: Population) -> Sample:
    params: dict[str, Any] = {"class": metric.pass_class} if metric.source == "passes" else {}
    result = store.query(
        f"sample_{metric.source}",
        params,
        runs={"run": run_id},
        population=population,
        metric=metric,
        row_cap=None,
        keep=False,
    )
    if result.not_recorded:
        return Sample(np.empty(0), np.empty(0, np.int64), 0, result.sql, result.not_recorded)
    raw = result.table.column("value")
    undefined = raw.null_count
    n = len(raw) - undefined
    values = np.asarray(raw.slice(0, n).to_numpy(), dtype=np.float64) * metric.scale
    lanes = result.table.column("lane").slice(0, n).fill_null(-1).to_numpy()
    values.flags.writeable = False
    return Sample(values, narrow(lanes), undefined, result.sql)


_ONCE_PER_RUN = ("requests", "itl", "chunk_gap")
"""Sources whose values are found and sorted once per run, and then chosen by population."""


def _of_members(store: Store, run_id: str, metric: Metric, population: Population) -> Sample:
    """The values of a population's requests out of those of the run."""
    members: _Members = store.remember(
        ("members", run_id, population),
        lambda: _find_members(store, run_id, population),
        runs=[one for one in (run_id, population.counterpart) if one],
    )

    def choose() -> Sample:
        whole: _Whole = store.remember(
            ("whole", run_id, metric.name), lambda: _find_whole(store, run_id, metric), runs=(run_id,)
        )
        if whole.not_recorded:
            return Sample(np.empty(0), np.empty(0, np.int64), 0, whole.sql, whole.not_recorded)
        chosen = members.belongs[whole.requests]
        defined = len(whole.values)
        values = whole.values[chosen[:defined]].astype(np.float64, copy=False) * metric.scale
        lanes = whole.lanes[:defined][chosen[:defined]]
        for array in (values, lanes):
            array.flags.writeable = False
        return Sample(values, lanes, int(chosen[defined:].sum()), whole.sql, of=members.of)

    # Of a large run the values of all requests lie in a file: choosing out of them costs less than another file.
    made: Sample = store.remember(("sample", run_id, metric.name, members.of), choose)
    return replace(made, sql=f"{members.sql}\n\n{made.sql}")


@dataclass(frozen=True, slots=True, eq=False)
class _Members:
    """Which requests of a run, by their number, are successes of a population; ``of`` is a digest of that."""

    belongs: npt.NDArray[np.bool_]
    of: str
    sql: str


def _find_members(store: Store, run_id: str, population: Population) -> _Members:
    found = store.query("sample_members", runs={"run": run_id}, population=population, row_cap=None, keep=False)
    numbers = found.array("request").astype(np.int64) if not found.not_recorded else np.empty(0, np.int64)
    belongs = np.zeros(max(store.bundle(run_id).rows("requests") or 0, 1), dtype=bool)
    belongs[numbers] = True
    return _Members(belongs, hashlib.sha256(np.packbits(belongs).tobytes()).hexdigest()[:16], found.sql)


@dataclass(frozen=True, slots=True, eq=False)
class _Whole:
    """Every value of a run's successful requests as it is stored, sorted, with the lane and the number of its request.

    ``requests`` and ``lanes`` go on with those of the undefined values.
    """

    values: Floats | Ints
    lanes: Ints
    requests: Ints
    sql: str
    not_recorded: str | None


def _find_whole(store: Store, run_id: str, metric: Metric) -> _Whole:
    result = store.query(f"sample_{metric.source}", runs={"run": run_id}, metric=metric, row_cap=None, keep=False)
    if result.not_recorded:
        return _Whole(np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64), result.sql, result.not_recorded)
    column = result.table.column("value")
    lanes, requests = (narrow(_known(result.table.column(name))) for name in ("lane", "request"))
    uncounted = _uncounted(store, run_id) if metric.source == "itl" and not len(column) else None
    if metric.source != "requests":  # the table holds gaps sorted, none of them undefined
        return _Whole(narrow(column.to_numpy()), lanes, requests, result.sql, uncounted)
    raw = np.asarray(column.to_numpy(), dtype=np.float64)
    order = np.lexsort((lanes, raw))  # the table holds requests in order of dispatch
    raw, lanes, requests = raw[order], lanes[order], requests[order]
    return _Whole(raw[: len(raw) - int(np.isnan(raw).sum())], lanes, requests, result.sql, None)


def _known(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    return np.asarray((column.fill_null(-1) if column.null_count else column).to_numpy())


def _uncounted(store: Store, run_id: str) -> str | None:
    """A sentence where chunks were recorded without their tokens, so that there are no gaps between tokens."""
    found = store.query("capture_chunks", runs={"run": run_id}).one()
    if found["chunks"] == found["counted"]:
        return None
    return (
        f"Not recorded: run {run_id} has chunks without their number of tokens, so gaps between tokens are not "
        "defined; the gaps between its chunks are."
    )


@dataclass(frozen=True, slots=True)
class TailShare:
    """How much of the gap between two means the largest requests make. Values in the metric's unit."""

    top: int
    share_of_requests: float
    measured: float
    replay: float
    gap: float
    share_of_gap: float | None


def tail_attribution(
    measured: Sample, replay: Sample, tops: Sequence[int] = (1, 5, 10, 20, 50, 100)
) -> list[TailShare]:
    """Split the gap of the means at the largest k requests of the measured side and the same share of the replay.

    The mean is the area under the quantile function, so the parts of the tail and of the body sum to the gap.
    ``share_of_gap`` is None where the means are equal.
    """
    if not measured.n or not replay.n:
        return []
    total = float(replay.values.mean()) - float(measured.values.mean())
    rows = []
    for top in tops:
        if top > measured.n:
            break
        share = top / measured.n
        left, right = measured.tail_mass(share), replay.tail_mass(share)
        assert left is not None
        assert right is not None
        part = right - left
        rows.append(TailShare(top, share, left, right, part, part / total if total else None))
    return rows


def quantile_pairs(measured: Sample, replay: Sample, points: int = 100) -> tuple[Floats, Floats, Floats]:
    """Shares p with the quantile of either side, for a quantile-quantile plot; empty when a side is empty."""
    if not measured.n or not replay.n:
        empty = np.empty(0)
        return empty, empty, empty
    n = min(measured.n, replay.n)
    body = np.linspace(0.5, 99, points * 2 // 3)
    tail = 100 - np.geomspace(1, max(100 / n, 0.001), points - len(body)) if n > 100 else np.empty(0)
    ps = np.concatenate([body, tail])
    return ps / 100, measured.percentiles(ps), replay.percentiles(ps)
