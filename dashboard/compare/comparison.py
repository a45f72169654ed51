"""A replay beside a measured run: rows with their state, ledgers, consistency, gates, and warnings as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dashboard.catalogue import KIND_WORDS
from dashboard.compare import compensation
from dashboard.compare.claim import claim
from dashboard.compare.decomposition import Decomposition, decompositions
from dashboard.compare.gates import Gate, GateResult, judge
from dashboard.compare.numbers import Key, number
from dashboard.compare.rows import ALIKE, USUAL, Row, compare_number, judged, places, places_of, refused, to_be_said
from dashboard.metrics import (
    HEADLINE,
    HEADLINE_METRICS,
    HEADLINE_STATISTICS,
    MEASURES,
    Estimator,
    Population,
    Window,
)
from dashboard.queries.cohort import Ledger, MatchedSubset, ledger, matched_subset
from dashboard.queries.identity import IdentityDiff, failed_checks, identity, one_experiment, repeats, same_recording
from dashboard.queries.ranges import lanes
from dashboard.queries.totals import totals
from dashboard.store import Store
from engine.bundle import make_label
from engine.errors import GapscopeError

RATES = ("request_rate", "output_rate", "total_rate", "output_rate_per_gpu")

LABELS = {
    "blind_prediction": "blind prediction",
    "diagnostic": "diagnostic",
    "post_result_exploratory": "post-result exploratory",
    "measured_repeat": "repeat of one experiment",
    "measured_pair": "measured against measured, no repeat",
    "replay_pair": "replay against replay",
    "same_run": "a run against itself",
}


@dataclass(frozen=True, slots=True)
class Warn:
    """Something a reader must know before trusting the table. ``code`` is stable."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Consistency:
    """Little's law on one side: in-flight = fixed-window throughput times mean E2E, in requests.

    ``observed`` is the time average counted from the rows; ``lanes`` the configured sessions, which hold think time
    and so exceed the requests in flight. ``note`` says what was left out of ``observed``, or why it is not there.
    """

    little: float | None
    observed: float | None
    lanes: int | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that the verdict page and ``gapscope compare`` show.

    ``rows`` holds the sample statistics, the rates of the chosen window and the other measures; ``rates`` the rates
    of every window. A passed mean claims nothing about a tail: ``claim`` says what was and what was not shown.
    ``places`` are the words for the two sides.
    """

    measured: str
    replay: str
    label: str
    population: Population
    estimator: Estimator
    window: Window
    rows: tuple[Row, ...]
    rates: tuple[Row, ...]
    warnings: tuple[Warn, ...]
    gates: tuple[GateResult, ...]
    ledgers: tuple[Ledger, Ledger]
    consistency: tuple[Consistency, Consistency]
    matched: MatchedSubset
    identity: IdentityDiff
    repeats: tuple[str, ...]
    decompositions: tuple[Decomposition, ...]
    claim: tuple[str, ...]
    places: tuple[str, str] = USUAL

    @property
    def passed(self) -> bool:
        """Whether every gate holds; true without gates, as nothing was asked."""
        return all(result.verdict == "pass" for result in self.gates)

    def row(self, text: str) -> Row:
        """The row of a number, by its text form."""
        return next(row for row in (*self.rows, *self.rates) if str(row.key) == text)


def compare(
    store: Store,
    measured: str,
    replay: str,
    population: Population = HEADLINE,
    estimator: Estimator = Estimator.LINEAR,
    window: Window = Window.FIXED,
    gates: Sequence[Gate] = (),
    metrics: Sequence[str] = HEADLINE_METRICS,
) -> Comparison:
    """Compare two runs of the store.

    Raises:
        GapscopeError: a run is absent, altered, or has no requests to compare.
    """
    for run_id in (measured, replay):
        if "requests" not in store.tables(run_id):
            raise GapscopeError(
                f"Run {run_id} has no requests to compare, it is a {KIND_WORDS[store.bundle(run_id).kind]}: expected a "
                "measured run and a replay."
            )
    key = (
        "compare",
        measured,
        replay,
        population,
        estimator,
        window,
        tuple(gates),
        tuple(metrics),
        tuple(repeats(store, measured)),
    )

    def make() -> Comparison:
        return _compare(store, measured, replay, population, estimator, window, gates, metrics)

    with store.steady():
        found: Comparison = store.remember(key, make, runs=(measured, replay))
    return found


def _compare(
    store: Store,
    measured: str,
    replay: str,
    population: Population,
    estimator: Estimator,
    window: Window,
    gates: Sequence[Gate],
    metrics: Sequence[str],
) -> Comparison:
    same = tuple(repeats(store, measured))
    apart = tuple(run_id for run_id in same if run_id != replay)
    pair = (measured, replay)

    def row(key: Key) -> Row:
        return compare_number(store, pair, key, population, estimator, same)

    samples = [row(Key(name, statistic)) for name in metrics for statistic in HEADLINE_STATISTICS]
    rates = {each: [row(Key(name, each.value)) for name in RATES] for each in Window}
    others = [row(Key(name, s)) for name, m in MEASURES.items() if name not in RATES for s in m.statistics]
    rows = [*samples, *rates[window], *others]
    ledgers = (ledger(store, measured), ledger(store, replay))
    diff = identity(store, measured, replay)
    matched = matched_subset(store, measured, replay, population)
    successes = (
        totals(store, measured, population.for_side(replay)).total("ok"),
        totals(store, replay, population.for_side(measured)).total("ok"),
    )
    label, kinds = pair_label(store, measured, replay), (store.bundle(measured).kind, store.bundle(replay).kind)
    parts = tuple(found for name, found in decompositions(store, *pair, population, apart).items() if name in metrics)
    results = tuple(_judge(store, pair, gate, estimator, same) for gate in gates)
    return Comparison(
        measured=measured,
        replay=replay,
        label=label,
        population=population,
        estimator=estimator,
        window=window,
        rows=tuple(rows),
        rates=tuple(r for each in Window for r in rates[each]),
        warnings=(
            *_warnings(store, pair, population, rows, ledgers, diff, same),
            *_cancelling(parts, rows, gates, population),
        ),
        gates=results,
        ledgers=ledgers,
        consistency=(_consistency(store, measured, population), _consistency(store, replay, population)),
        matched=matched,
        identity=diff,
        repeats=same,
        decompositions=parts,
        claim=tuple(claim(rows, results, label, population, successes, diff, _failed(store, *pair), kinds)),
        places=places(*kinds),
    )


def pair_label(store: Store, measured: str, replay: str) -> str:
    """What a pair may claim, from the replay's lineage, whichever side it stands on; a key of LABELS."""
    left, right = store.bundle(measured), store.bundle(replay)
    if left.run_id.rpartition("-")[2] == right.run_id.rpartition("-")[2]:
        return "same_run"  # the same content under another name, too
    if left.kind == right.kind:
        if left.kind == "replay":
            return "replay_pair"
        if not one_experiment(store, measured, replay):
            return "measured_pair"
        if same_recording(store, measured, replay):
            return "same_run"
        return "measured_pair" if _failed(store, measured, replay) else "measured_repeat"
    return make_label(right, left) if right.kind == "replay" else make_label(left, right)


def _failed(store: Store, *run_ids: str) -> list[str]:
    """Checks that a run failed: what went wrong in it is no run-to-run variation."""
    return list(dict.fromkeys(check for run_id in run_ids for check in failed_checks(store, run_id)))


def _consistency(store: Store, run_id: str, population: Population) -> Consistency:
    complete = Population(population.phase)
    little = number(store, run_id, Key("in_flight", "little"), complete)
    observed = number(store, run_id, Key("in_flight", "observed"), complete)
    return Consistency(little.value, observed.value, lanes(store, run_id), observed.why or observed.note)


def _judge(
    store: Store, pair: tuple[str, str], gate: Gate, estimator: Estimator, repeats: tuple[str, ...]
) -> GateResult:
    """A gate, and beside the gap that it bounds whether that is inside the noise."""
    result = judge(store, *pair, gate, estimator)
    row = compare_number(store, pair, gate.key, gate.population, estimator, repeats)
    if gate.kind == "range" or row.state == "not comparable":
        return result
    return replace(result, reason=f"{result.reason}; {judged(row)}")


def _cancelling(
    parts: Sequence[Decomposition], rows: Sequence[Row], gates: Sequence[Gate], population: Population
) -> list[Warn]:
    """A warning for each mean in which two large parts cancel, whether its total passes or not."""
    means = {str(row.key): row for row in rows}
    found = []
    for one in parts:
        allowed = compensation.tolerance(means[f"{one.metric}.mean"], gates, population)
        if allowed and (pair := compensation.compensating(one, allowed)):
            found.append(Warn("compensating", compensation.words(one, allowed, pair)))
    return found


def _warnings(
    store: Store,
    pair: tuple[str, str],
    population: Population,
    rows: Sequence[Row],
    ledgers: tuple[Ledger, Ledger],
    diff: IdentityDiff,
    repeats: tuple[str, ...],
) -> list[Warn]:
    found = []
    if diff.regime_differs:
        names = ", ".join(row.label for row in diff.regime_differs)
        found.append(Warn("regime", f"Not like for like: {names} differ, and they define the regime."))
    called = places_of(store, *pair)
    runs = ("reference", "run compared with it") if called == ALIKE else ("measured run", "replay run")
    for side, run_id, told in zip(runs, pair, ledgers, strict=True):
        for problem in told.problems:
            found.append(Warn("ledger", f"The ledger of the {side} does not balance: {problem}"))
        for check in store.bundle(run_id).qualification:
            if check.verdict == "fail":
                found.append(Warn("qualification", f"The {side} failed {check.check}: {check.detail}"))
    for side, (one, other) in zip(runs, (pair, pair[::-1]), strict=True):
        for source in store.bundle(other).lineage.get("fitted_on") or []:
            if source.get("run_id") == one:
                phases = ", ".join(source.get("phases") or ["every phase"])
                found.append(Warn("fitted", f"The timing model was fitted on the {side} itself: {phases}."))
    if population.matched:
        found.append(Warn("subset", "Matched source-turns are a diagnostic subset, not the headline."))
    apart: dict[str, list[str]] = {}
    for key in {row.key.metric: row.key for row in rows}.values():
        if said := refused(store, *pair, key.metric):
            apart.setdefault(f"not comparable. {said}", []).append(key.label)
        else:
            for rule in to_be_said(store, *pair, key.metric):
                apart.setdefault(f"{rule}.", []).append(key.label)
    for words, labels in apart.items():
        found.append(Warn("definitions", f"{', '.join(labels)}: {words}"))
    for at, side in enumerate(called):
        partial: dict[str, list[str]] = {}
        for row in rows:
            if note := (row.replay if at else row.measured).note:
                partial.setdefault(note, []).append(row.key.label)
        found += [Warn("left_out", f"{', '.join(labels)}, {side}: {note}.") for note, labels in partial.items()]
    weak = [str(row.key) for row in rows if row.weak]
    if weak:
        found.append(Warn("support", f"Too few values for {', '.join(weak)}: a percentile p needs 1/(1-p) of them."))
    if not repeats:
        found.append(Warn("noise", f"No repeat of the {runs[0]} in the store: noise is a bootstrap or unknown."))
    time_inside = next((row.replay.value for row in rows if str(row.key) == "coverage.time"), None)
    if time_inside is not None and time_inside < 1:
        found.append(
            Warn("coverage", f"{1 - time_inside:.1%} of the modelled time lies outside the timing model's domain.")
        )
    return found
