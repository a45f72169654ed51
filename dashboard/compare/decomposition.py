"""Which parts the gap of a mean is made of: signed, in milliseconds, and they add up to it.

The source-turns that both sides finished are taken apart stage by stage; what remains of the gap is that the two
cohorts hold other turns. ``docs/metrics.md`` says what each part counts. What one side did not record is never a zero:
its time stands in the part that is not split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dashboard.compare.noise import COVERED, RESAMPLES, closed_lanes, lane_weights
from dashboard.compare.rows import refused
from dashboard.compare.stages import Columns, Scope, Shared
from dashboard.metrics import METRICS, MS_PER_NS, Population
from dashboard.queries.stages import stage_rows
from dashboard.store import Store

Floats = npt.NDArray[np.float64]

DECOMPOSED = ("ttft", "tpot", "e2e", "itl")
"""Metrics whose mean is taken apart."""

PARTS: dict[str, str] = {
    "client": "Client and frontend: way to the engine",
    "queueing": "Queueing",
    "recompute": "Recompute (cache)",
    "prefill": "GPU: prefill-only passes",
    "mixed": "GPU: mixed passes",
    "decode": "GPU: decode-only passes",
    "host": "Host time between passes",
    "transfer": "KV transfer between pools",
    "output": "Output and streaming",
    "cohort": "Cohort composition",
    "unsplit": "Not split",
}
"""The parts in the order of a request's life, and what a chart calls them."""

FEW_SHARED = 0.5
"""Share of the smaller side below which the shared source-turns are said to be few."""


@dataclass(frozen=True, slots=True)
class Part:
    """One signed part of a gap, in ms, with the interval in which it lies when nothing changes but chance.

    ``rests_on`` says where the interval comes from. ``value_ms`` is None, and ``rests_on`` the reason, where the part
    cannot be told apart; its time is in the part not split.
    """

    name: str
    value_ms: float | None
    low_ms: float | None = None
    high_ms: float | None = None
    rests_on: str = ""

    @property
    def label(self) -> str:
        """What a chart calls it."""
        return PARTS[self.name]

    @property
    def inside(self) -> bool | None:
        """Whether the part is inside its noise: its interval holds zero. None where nothing says it."""
        if self.value_ms is None or self.low_ms is None or self.high_ms is None:
            return None
        return self.low_ms <= 0 <= self.high_ms

    @property
    def state(self) -> str:
        """Whether it is inside the noise, in words, or what is unknown."""
        if self.value_ms is None:
            return "not recorded"
        return {True: "~ inside the noise", False: "outside the noise", None: "noise unknown"}[self.inside]


@dataclass(frozen=True, slots=True)
class Decomposition:
    """The gap of a mean, in ms, and its parts; ``parts`` is empty, with a sentence, where a side has no mean.

    ``n`` counts the values of either side, ``shared`` the source-turns that were taken apart.
    """

    metric: str
    measured: float | None
    replay: float | None
    parts: tuple[Part, ...]
    n: tuple[int, int]
    shared: int
    note: str
    sql: str

    @property
    def label(self) -> str:
        """The metric in words."""
        return METRICS[self.metric].label

    @property
    def gap(self) -> float | None:
        """Replay less measured, in ms; None where a side has no mean, or the two are not comparable."""
        if not self.parts or self.measured is None or self.replay is None:
            return None
        return self.replay - self.measured

    def value_of(self, name: str) -> float | None:
        """The value of one part by name; 0 where it is none of this gap."""
        return next((part.value_ms for part in self.parts if part.name == name), 0.0)

    def part(self, name: str) -> Part:
        """One part by name."""
        return next(part for part in self.parts if part.name == name)


def decompositions(
    store: Store, measured: str, replay: str, population: Population, repeats: Sequence[str] = ()
) -> dict[str, Decomposition]:
    """The gap of the mean of each of DECOMPOSED, taken apart, from one query per pair.

    The interval of a part is a bootstrap over lanes, each drawn with its source-turns on both sides, or as wide as the
    same part between the measured run and its ``repeats`` where that is wider.

    Raises:
        GapscopeError: a run is absent or altered.
    """
    found = {
        name: replace(one, parts=(), note=f"Not comparable: {said}")
        if (said := refused(store, measured, replay, name))
        else one
        for name, one in _of_pair(store, measured, replay, population).items()
    }
    if not repeats or population.matched:
        return found
    others = [_of_pair(store, measured, one, population) for one in repeats]
    return {name: _beside(one, [other[name] for other in others]) for name, one in found.items()}


def _beside(found: Decomposition, others: Sequence[Decomposition]) -> Decomposition:
    """The parts with what repeats say about their noise, where that is wider than the bootstrap.

    One repeat may have a small part by chance, and a bootstrap does not know what a host does from run to run.
    """
    parts = []
    for part in found.parts:
        found_in = [other.value_of(part.name) for other in others if other.parts]
        sizes = [abs(value) for value in found_in if value is not None]
        if part.value_ms is not None and sizes:
            low, high = part.value_ms - max(sizes), part.value_ms + max(sizes)
            words = f"largest such part of {len(sizes)} repeat{'s' if len(sizes) > 1 else ''} of the measured run"
            if part.low_ms is not None and part.high_ms is not None:
                low, high = min(low, part.low_ms), max(high, part.high_ms)
                words += f", or wider: {part.rests_on}"
            part = Part(part.name, part.value_ms, low, high, words)
        parts.append(part)
    return replace(found, parts=tuple(parts))


CLOCKS = ("one_clock", "clocks_aligned")
"""The checks that ask for it: of a recording with both times, and of streams that were attached to a client's run."""

_IN_THE_ENGINE = ("path_ns", "queue_time_ns", "way_ns", "pre_ns", "first_lag_ns", "last_lag_ns")
"""Columns of :func:`stage_rows` that take a moment inside the engine."""


def one_clock(store: Store, run_id: str) -> bool:
    """Whether client and engine times of a run stand on one clock, so that times between the two mean something.

    Streams of an engine that were moved onto the client's clock do, where the requests bear it out.
    """
    bundle = store.bundle(run_id)
    verdicts = {check.check: check.verdict for check in bundle.qualification if check.check in CLOCKS}
    if bundle.kind == "replay" or "one_clock" in verdicts:
        return verdicts.get("one_clock", "pass") == "pass" and verdicts.get("clocks_aligned") != "fail"
    if verdicts:
        return verdicts["clocks_aligned"] == "pass"
    return str(bundle.identity.value("telemetry", "clock") or "").startswith("one ")


def has_engine_times(store: Store, run_id: str) -> bool:
    """Whether a moment inside the engine is known of any success: receipt, admission, or a pass of it."""
    rows = stage_rows(store, run_id)
    return any(bool(np.isfinite(rows[name]).any()) for name in _IN_THE_ENGINE)


def clock_problem(store: Store, *run_ids: str) -> str:
    """A sentence on the runs of several clocks, or of a client's alone; empty where each has one for both."""
    clients = [run_id for run_id in run_ids if not has_engine_times(store, run_id)]
    if clients:
        return (
            f"No engine times of {' and '.join(clients)} are recorded, so what lies between the dispatch and the first "
            "visible token, and what after it is computed or streamed, is not told apart."
        )
    apart = [run_id for run_id in run_ids if not one_clock(store, run_id)]
    if not apart:
        return ""
    return (
        f"Client and engine times of {' and '.join(apart)} are not known to stand on one clock, so the way to the "
        "engine and the way back are not told apart."
    )


def clock_note(store: Store, *run_ids: str) -> str:
    """How well the clocks agree of the runs whose engine times were moved onto the client's; empty without any."""
    moved = []
    for run_id in run_ids:
        detail = next((c.detail for c in store.bundle(run_id).qualification if c.check == "clocks_aligned"), "")
        if detail and one_clock(store, run_id):
            moved.append(f"Engine times of {run_id} were moved onto the client's clock {detail}.")
    return " ".join(moved)


def _of_pair(store: Store, measured: str, replay: str, population: Population) -> dict[str, Decomposition]:
    for run_id in (measured, replay):
        store.bundle(run_id)  # notices files that changed before an old answer is given
    key = ("decomposition", measured, replay, population)

    def make() -> dict[str, Decomposition]:
        return _decompositions(store, measured, replay, population)

    found: dict[str, Decomposition] = store.remember(key, make, runs=(measured, replay))
    return found


def _decompositions(store: Store, measured: str, replay: str, population: Population) -> dict[str, Decomposition]:
    clocks = clock_problem(store, measured, replay)
    both = Shared(store, measured, replay, population, not clocks)
    weights = lane_weights(len(both.lanes)) if closed_lanes(store, measured) and -1 not in both.lanes else None
    scopes = {metric: both.scope(metric) for metric in DECOMPOSED}
    priced = scopes["ttft"].both[0]
    return {metric: _one(scope, priced, weights, clocks, both.sql) for metric, scope in scopes.items()}


def _one(scope: Scope, priced: Columns, weights: Floats | None, clocks: str, sql: str) -> Decomposition:
    n = (int(scope.complete[0]["n"].sum()), int(scope.complete[1]["n"].sum()))
    if not all(n):
        side, label = "measured" if not n[0] else "replay", METRICS[scope.metric].label
        note = f"The {side} side has no mean {label} over this population, so there is no gap to split."
        return Decomposition(scope.metric, None, None, (), n, scope.shared, note, sql)
    lanes = len(scope.complete[0]["n"])
    values, means = _parts(scope, priced, np.ones((1, lanes)))
    if scope.shared and not scope.unsplit:
        values["unsplit"] = np.zeros(1)  # what is left is rounding
    missing = _missing(scope, clocks)
    drawn = _parts(scope, priced, weights)[0] if weights is not None and scope.shared else {}
    parts = []
    for name, value in values.items():
        if name in missing:
            parts.append(Part(name, None, rests_on=missing[name]))
            continue
        low = high = None
        words = "no repeat in the store, and no lanes to draw again"
        if name in drawn and (kept := drawn[name][np.isfinite(drawn[name])]).size:
            low, high = (float(end) * MS_PER_NS for end in np.percentile(kept, COVERED))
            words = f"bootstrap over {lanes} lanes, {RESAMPLES} resamples, central 95 %"
        parts.append(Part(name, float(value[0]) * MS_PER_NS, low, high, words))
    left, right = (float(mean[0]) * MS_PER_NS for mean in means)
    return Decomposition(scope.metric, left, right, tuple(parts), n, scope.shared, _note(scope, missing), sql)


def _parts(scope: Scope, priced: Columns, weights: Floats) -> tuple[dict[str, Floats], tuple[Floats, Floats]]:
    """The parts, in ns, for each row of weights of the lanes, and the means of both sides.

    A prompt token costs what it cost on the measured side, whose sums over TTFT are ``priced``: time in prefill-only
    and mixed passes before the first token, over the prompt tokens computed there.
    """

    def over(value: Floats, count: Floats) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray((weights @ value) / (weights @ count))

    def change(name: str) -> Floats:
        left, right = scope.both
        return over(right[name], right["n"]) - over(left[name], left["n"])

    left, right = (over(side["value"], side["n"]) for side in scope.complete)
    gap = right - left
    if not scope.shared:
        return dict.fromkeys(_names(scope), np.zeros_like(gap)) | {"unsplit": gap}, (left, right)
    moved = dict.fromkeys(("prefill", "mixed"), np.zeros_like(gap))
    if scope.reuse_known:
        tokens = change("tokens")
        computed = weights @ priced["tokens"]
        for name in moved:
            price = np.divide(weights @ priced[name], computed, out=np.zeros_like(gap), where=computed > 0)
            moved[name] = tokens * price
    found = {
        "client": change("client"),
        "queueing": change("queueing"),
        "recompute": moved["prefill"] + moved["mixed"],
        "prefill": change("prefill") - moved["prefill"],
        "mixed": change("mixed") - moved["mixed"],
        "decode": change("decode"),
        "host": change("host"),
        "transfer": change("transfer"),
        "output": change("output"),
    }
    found = {name: value for name, value in found.items() if name in _names(scope)}
    together = change("value")
    split = np.asarray(sum(found.values()))
    return found | {"cohort": gap - together, "unsplit": together - split}, (left, right)


def _names(scope: Scope) -> list[str]:
    """The parts that a metric can have: TPOT and ITL begin when the request is long in the engine.

    KV goes from pool to pool in few deployments, and is a part where it does on either side.
    """
    some = {"client": scope.from_dispatch, "transfer": scope.from_dispatch and scope.transfers}
    return [name for name in PARTS if some.get(name, True)]


def _missing(scope: Scope, clocks: str) -> dict[str, str]:
    """The parts that nothing is known of, each with the reason."""
    if not scope.shared:
        return {name: "The two sides share no source-turn." for name in _names(scope) if name != "unsplit"}
    found: dict[str, str] = {}
    apart = clocks or "Dispatch, receipt by the engine and the passes between them are not recorded on both sides."
    if scope.from_dispatch and not scope.known["way"]:
        found["client"] = apart
    if not scope.known["passes"]:
        if not scope.from_dispatch or not (scope.known["way"] or scope.known["queue"]):
            found["queueing"] = "Neither receipt and admission nor the passes are recorded on both sides."
        words = "The passes of a request are not recorded on both sides: time in the engine is not split."
        found |= dict.fromkeys(("recompute", "prefill", "mixed", "decode", "host"), words)
    elif not scope.reuse_known:
        found["recompute"] = "Reused tokens are not recorded on both sides: recompute stands in the GPU parts."
    if not scope.known["output"]:
        found["output"] = clocks or "The pass that computed a token is not recorded on both sides."
    return found


def _note(scope: Scope, missing: dict[str, str]) -> str:
    if not scope.shared:
        return "The two sides share no source-turn, so nothing can be taken apart."
    left, right = scope.successes
    words = [
        f"Taken apart over the {scope.shared:,} source-turns that have a value on both sides, of {left:,} of the "
        f"first run and {right:,} of the second."
    ]
    if scope.shared < FEW_SHARED * min(left, right):
        words.append("That is the smaller part: what holds of them need not hold of the rest, the part of the cohort.")
    words += list(dict.fromkeys(missing.values()))
    if scope.unsplit:
        words.append(f"Of {scope.unsplit:,} of them something is not recorded, and that time is not split.")
    return " ".join(words)
