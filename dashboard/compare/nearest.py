"""Which of several candidates is nearer to the measured run: said of a number only where the noise leaves no doubt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.compare.numbers import Key
from dashboard.compare.rows import Row

TIED = "~ none, by the noise"
UNKNOWN = "noise unknown"
OTHER_MEMBERS = "each pair has members of its own"
APART = "not comparable"
REPEAT_LABELS = ("measured_repeat", "same_run")
"""Labels of pairs whose second run is the measured experiment once more: it is what noise is told by, no candidate."""


@dataclass(frozen=True, slots=True)
class Nearest:
    """Of one number: the place of the nearest candidate, or None and why none can be named."""

    key: Key
    at: int | None
    why: str = ""


def nearest(rows: Sequence[Row]) -> Nearest:
    """The nearest of several candidates, from one row of the same number per candidate (at least two).

    Candidate a is nearer than b when it is nearer to every value that the measured side may have (its noise), and
    ``|b - measured| - |a - measured|`` exceeds half the width of that noise. It is named when it is nearer than all
    others that can be compared.
    """
    key = rows[0].key
    known = [(at, row) for at, row in enumerate(rows) if row.state != "not comparable"]
    if len(known) < 2:
        return Nearest(key, None, APART)
    measured = {row.measured.value for _, row in known}
    if len(measured) > 1:
        return Nearest(key, None, OTHER_MEMBERS)
    spreads = [row.noise for _, row in known]
    if any(spread is None for spread in spreads):
        return Nearest(key, None, UNKNOWN)
    low, high = min(s.low for s in spreads if s), max(s.high for s in spreads if s)
    (centre,) = measured
    assert centre is not None

    def away(row: Row, value: float) -> float:
        return abs((row.replay.value or 0.0) - value)

    first, *others = sorted(known, key=lambda one: away(one[1], centre))
    for _, other in others:
        sure = min(away(other, end) - away(first[1], end) for end in (low, high)) > 0
        if not sure or away(other, centre) - away(first[1], centre) <= (high - low) / 2:
            return Nearest(key, None, TIED)
    return Nearest(key, first[0])


def nearest_claim(names: Sequence[str], found: Sequence[Nearest]) -> list[str]:
    """Sentences on several candidates, bounded: who is nearer in what, and of how many numbers nothing is said.

    ``names`` are those of the candidates, in the order of the rows that ``found`` was made from.
    """
    sentences = []
    for at, name in enumerate(names):
        won = [f"{one.key.label} {one.key.statistic.replace('_', ' ')}" for one in found if one.at == at]
        if won:
            sentences.append(f"Nearer to the measured run, outside the noise, {name} is in {', '.join(won)}.")
    open_: dict[str, int] = {}
    for one in found:
        if one.at is None:
            open_[one.why] = open_.get(one.why, 0) + 1
    words = {
        TIED: "no candidate is nearer outside the noise",
        UNKNOWN: "the noise is unknown, so none is called nearer",
        OTHER_MEMBERS: "each pair has members of its own, so none is called nearer",
        APART: "fewer than two candidates can be compared",
    }
    told = [f"for {count} {words[why]}" for why, count in open_.items()]
    if told:
        sentences.append(f"Of {len(found)} numbers, {'; '.join(told)}.")
    sentences.append("Nearer in these numbers is not nearer in others, and says nothing of why.")
    return sentences
