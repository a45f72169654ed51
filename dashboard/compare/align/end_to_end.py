"""Rung 5: the numbers of the whole. They may be claimed only as far as the rungs below hold."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.compare.align.values import BOTH, Check, Rung, held, unknown
from dashboard.compare.numbers import Key
from dashboard.compare.rows import compare_number
from dashboard.metrics import LADDER_NUMBERS, Estimator, Population
from dashboard.store import Store

NUMBERS = (*LADDER_NUMBERS, "output_rate.fixed")
COUNTS = ("preemptions.requests",)
"""Numbers that are small counts: a share of one says little."""


def checks(
    store: Store,
    pair: tuple[str, str],
    population: Population,
    estimator: Estimator,
    repeats: tuple[str, ...],
    tolerance: float,
) -> tuple[Check, ...]:
    """One check per number: it holds within the tolerance, or by the rule of noise that every row has."""
    found = []
    for text in NUMBERS:
        key = Key.parse(text)
        name = LADDER_NUMBERS.get(text, "output token rate")
        row = compare_number(store, pair, key, population, estimator, repeats)
        if row.state == "not comparable":
            found.append(unknown(name, BOTH, row.reason, unit=key.unit, n=row.replay.n))
            continue
        if not row.measured.n or not row.replay.n:
            found.append(unknown(name, BOTH, "a side has no success in this population", unit=key.unit))
            continue
        few = "too few values for this percentile; " if row.weak else ""
        check = held(
            name,
            BOTH,
            row.measured.value,
            row.replay.value,
            key.unit,
            tolerance,
            noise=row.noise,
            why=few + row.reason,
            n=row.replay.n,
            decides=text not in COUNTS and not row.weak,
        )
        found.append(check)
    return tuple(found)


def claim(rungs: Sequence[Rung]) -> tuple[str, ...]:
    """What may be said of the whole, and on what it rests; ``rungs`` are all five, in order."""
    below, last = rungs[:-1], rungs[-1]
    failed = next((rung for rung in below if rung.verdict == "fail"), None)
    if failed is not None:
        return (
            f"Nothing may be claimed end to end: rung {failed.number} ({failed.name}) fails, so numbers that agree may "
            "do so because errors cancel, and the rest may have their cause there.",
        )
    names = [check.name for check in last.checks if check.verdict == "pass"]
    off = [check.name for check in last.checks if check.verdict == "fail"]
    open_ = [rung for rung in below if rung.verdict == "unknown"]
    said = []
    if names:
        said.append(f"May be claimed of this pair: agreement in {', '.join(names)}.")
    if off:
        judged = " that could be judged" if open_ else ""
        said.append(
            f"May not be claimed: agreement in {', '.join(off)}. The rungs below{judged} do not hold the cause."
        )
    if unshown := [check.name for check in last.checks if check.open]:
        said.append(
            f"Not shown to differ, and not to agree: {', '.join(unshown)}, beyond too few repeats of the measured run."
        )
    if open_:
        words = ", ".join(f"{rung.number} ({rung.name})" for rung in open_)
        several = len(open_) > 1
        said.append(
            f"Rung{'s' if several else ''} {words} could not be judged: agreement end to end does not show "
            f"{'them' if several else 'it'}."
        )
    if not (names or off or unshown):
        said.append("End to end nothing could be judged.")
    return tuple(said)
