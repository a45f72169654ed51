"""What each step of a ladder does to a number, and which layer holds the largest part of its gap.

Only neighbours are compared. A difference leads from the prediction towards the measurement: value at the upper rung
minus value at the lower one, so that the differences of a number sum to measured minus prediction. Where a rung is
missing, its layer belongs to the step that takes it together with others, which that step cannot tell apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from dashboard.catalogue import RunEntry
from dashboard.compare.climb import TOP, Change, Climb, Gap, Step
from dashboard.compare.noise import Noise, noise, place
from dashboard.compare.numbers import Key, Number, number
from dashboard.compare.rows import refused
from dashboard.compare.settings import SCHEDULER, settings
from dashboard.metrics import HEADLINE, LADDER_NUMBERS, Estimator, Population
from dashboard.queries import coverage
from dashboard.queries.identity import repeats
from dashboard.queries.parity import checks
from dashboard.store import Store
from engine.definitions import Refusal
from engine.ladder.rungs import PARITY_RUNG, RUNGS

KEYS = tuple(Key.parse(text) for text in LADDER_NUMBERS)
IMPLIED = {5: (3,)}
"""A batch says how many tokens were computed before, so whoever takes the batches takes the reuse."""
CANCELING = 0.05
"""Of the measured value: steps that are larger may cancel, where the noise is unknown."""


def rungs_of(entries: Sequence[RunEntry], measured: str, base: str) -> dict[int, str]:
    """The rungs of a ladder that the store holds, prediction and measurement included; of two equal ones the newest."""
    own = [e for e in entries if e.ladder == (measured, base) and e.state == "ok" and e.rung is not None]
    own.sort(key=lambda entry: (entry.created_unix_ns or 0, entry.run_id))
    found = {0: base, TOP: measured} | {entry.rung: entry.run_id for entry in own if entry.rung is not None}
    return dict(sorted(found.items()))


def base_of(entries: Sequence[RunEntry], replay: str) -> str:
    """The prediction that a replay stands for: the base of its ladder for a rung, else itself."""
    return next((entry.ladder[1] for entry in entries if entry.run_id == replay and entry.ladder), replay)


def climb(
    store: Store,
    measured: str,
    base: str,
    population: Population = HEADLINE,
    estimator: Estimator = Estimator.LINEAR,
    keys: Sequence[Key] = KEYS,
) -> Climb:
    """The ladder of a measured run and a prediction, as far as its rungs are in the store.

    Raises:
        GapscopeError: a run is absent or altered.
    """
    runs = rungs_of(store.catalogue(), measured, base)
    same = tuple(other for other in repeats(store, measured) if other not in runs.values())
    key = ("climb", tuple(runs.items()), population, estimator, tuple(keys), same)
    with store.steady():
        for run_id in runs.values():
            store.tables(run_id)  # notices files that changed before an old answer is given
        found: Climb = store.remember(
            key, lambda: _climb(store, runs, population, estimator, keys, same), runs=tuple(runs.values())
        )
    return found


def _climb(
    store: Store,
    runs: Mapping[int, str],
    population: Population,
    estimator: Estimator,
    keys: Sequence[Key],
    same: tuple[str, ...],
) -> Climb:
    measured, base = runs[TOP], runs[0]

    def read(rung: int) -> list[Number]:
        own = population.for_side(base if rung == TOP else measured)
        return [number(store, runs[rung], key, own, estimator) for key in keys]

    told = {rung: read(rung) for rung in runs}
    values = {key: {rung: told[rung][at] for rung in runs} for at, key in enumerate(keys)}
    spreads = {
        key: noise(store, measured, key, population.for_side(base), estimator, same, values[key][TOP]) for key in keys
    }
    rungs = list(runs)
    apart = {key: said for key in keys if (said := refused(store, measured, base, key))}
    taken = {rung: _taken(store, rung, run_id) for rung, run_id in runs.items()}
    found = tuple(
        Step(
            left,
            right,
            (runs[left], runs[right]),
            tuple(sorted(taken[right] - taken[left] | {right})),
            {
                key: _refused(values[key], left, right, apart[key])
                if right == TOP and key in apart
                else _change(values[key], left, right, spreads[key])
                for key in keys
            },
        )
        for left, right in pairwise(rungs)
    )
    told_otherwise = settings(store, measured, base)
    own_scheduler = any(setting.rung == SCHEDULER for setting in told_otherwise)
    exact = not own_scheduler and _exact_scheduler(store, runs)
    gaps = {
        key: Gap(key, values[key][0], values[key][TOP], None, None, why=f"not comparable: {apart[key]}")
        if key in apart
        else replace(_gap(key, values[key], spreads[key], found), exact_scheduler=exact)
        for key in keys
    }
    return Climb(measured, base, population, estimator, runs, found, gaps, told_otherwise, _foreign(store, runs))


def _foreign(store: Store, runs: Mapping[int, str]) -> float | None:
    if PARITY_RUNG not in runs or "coverage" not in store.tables(runs[PARITY_RUNG]):
        return None
    inside = coverage.shares(store, runs[PARITY_RUNG]).inside("time")
    return None if inside is None else 1 - inside


def _exact_scheduler(store: Store, runs: Mapping[int, str]) -> bool:
    told = checks(store, runs[PARITY_RUNG]).get("arrival") if PARITY_RUNG in runs else None
    return told is not None and told["passes"] == told["equal"]


def _taken(store: Store, rung: int, run_id: str) -> frozenset[int]:
    """The rungs whose layers a rung takes from the measurement: those below it, but for what could not be taken."""
    below = frozenset(range(1, rung + 1))
    told = () if rung in (0, TOP) else (store.bundle(run_id).lineage.get("ladder") or {}).get("taken") or ()
    named = {one.number for one in RUNGS if one.taken in told}
    return below & (named | {n for number in named for n in IMPLIED.get(number, ())} | {rung}) if named else below


def _refused(values: Mapping[int, Number], left: int, right: int, why: Refusal) -> Change:
    """The step to the measurement of a number that is another quantity there."""
    return Change(left, values[left], values[right], None, None, "unknown", f"not comparable: {why}")


def _change(values: Mapping[int, Number], left: int, right: int, spread: Noise | None) -> Change:
    since = max((rung for rung in values if rung <= left and values[rung].value is not None), default=left)
    before, after, top = values[since], values[right], values[TOP].value
    if before.value is None or after.value is None:
        rung, lacking = (left, before) if before.value is None else (right, after)
        reason = f"rung {rung}: {lacking.why or 'undefined'}"
        return Change(since, before, after, None, None, "unknown", reason)
    difference = after.value - before.value
    if top is None:
        return Change(since, before, after, difference, None, "unknown")
    where = place(spread, top - difference)
    return Change(since, before, after, difference, difference / top if top else None, where)


def _gap(key: Key, values: Mapping[int, Number], spread: Noise | None, found: Sequence[Step]) -> Gap:
    prediction, measured = values[0], values[TOP]
    if prediction.value is None or measured.value is None:
        side, lacking = ("prediction", prediction) if prediction.value is None else ("measured", measured)
        return Gap(key, prediction, measured, None, spread, why=f"{side}: {lacking.why or 'undefined'}")
    gap = measured.value - prediction.value
    told = [
        (_whole(found, step, change.since), change.difference)
        for step in found
        if (change := step.changes[key]).difference
    ]
    canceling = _canceling([one for one in told if _large(one[0].changes[key])])
    if not gap:
        return Gap(key, prediction, measured, gap, spread, canceling=canceling, why="prediction and measured are equal")
    step, difference = max(told, key=lambda one: one[1] / gap)
    net, beside = None, None
    if canceling:
        low, high = canceling[0].left, canceling[-1].right
        net = sum(moved for one, moved in told if low <= one.left and one.right <= high)
        others = [one for one in told if not (low <= one[0].left and one[0].right <= high)]
        large = [one for one in others if _large(one[0].changes[key])]
        beside = max(large, key=lambda one: abs(one[1]), default=(None, 0.0))[0]
    return Gap(key, prediction, measured, gap, spread, step, difference, difference / gap, canceling, net, beside)


def _whole(found: Sequence[Step], step: Step, since: int) -> Step:
    """The step with those below it over which its number has no value in between."""
    if since == step.left:
        return step
    below = [one for one in found if since <= one.left < step.left]
    taken = {number for one in (*below, step) for number in one.taken}
    return Step(since, step.right, (below[0].runs[0], step.runs[1]), tuple(sorted(taken)), step.changes)


def _large(change: Change) -> bool:
    """Whether a step is outside the noise, or larger than what is tolerated where that is unknown."""
    if change.where == "unknown":
        return change.relative is None or abs(change.relative) > CANCELING
    return change.where == "outside"


def _canceling(large: Sequence[tuple[Step, float]]) -> tuple[Step, ...]:
    """The largest step upwards and the largest downwards; empty where all go one way."""
    up = max(large, key=lambda one: one[1], default=None)
    down = min(large, key=lambda one: one[1], default=None)
    if up is None or down is None or up[1] <= 0 or down[1] >= 0:
        return ()
    return tuple(sorted((up[0], down[0]), key=lambda step: step.left))
