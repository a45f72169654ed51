"""Which of several candidates is nearer to the measured run: said of a number only where the noise leaves no doubt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dashboard.compare.numbers import Key
from dashboard.compare.rows import Row

TIED = "~ none, by the noise"
UNKNOWN = "noise unknown"
FEW = "too few repeats"
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

    Candidate a is nearer than b when it is nearer to every value that the measured side may have (its noise, and what
    redrawing adds to one or two repeats), and ``|b - measured| - |a - measured|`` exceeds half the width of that. It is
    named when it is nearer than all others that can be compared.
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
    reaches = [spread.reach for spread in spreads if spread]
    if None in reaches:
        return Nearest(key, None, FEW)
    low, high = min(r[0] for r in reaches if r), max(r[1] for r in reaches if r)
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


def short_names(run_ids: Sequence[str]) -> list[str]:
    """What runs are called side by side: the name of each, with its digest where two share one."""
    slugs = [run_id.rpartition("-")[0] for run_id in run_ids]
    return [run_id if slugs.count(slug) > 1 else slug for slug, run_id in zip(slugs, run_ids, strict=True)]


def nearest_claim(names: Mapping[int, str], found: Sequence[Nearest]) -> list[str]:
    """One line per candidate that competes, then of how many numbers nothing is said: bounded.

    ``names`` are those of the competing candidates by their places among the rows that ``found`` was made from, which
    are the headline numbers on every page and on the command line.
    """
    of = f"of {len(found)} headline numbers"
    lines = []
    for at, name in names.items():
        won: dict[str, list[str]] = {}
        for one in found:
            if one.at == at:
                label = one.key.words.removesuffix(f" {one.key.statistic}")
                won.setdefault(label, []).append(one.key.words.removeprefix(label).strip())
        told = "; ".join(f"{label} {', '.join(statistics)}".strip() for label, statistics in won.items())
        count = sum(map(len, won.values()))
        lines.append(f"{name} is nearer in {count} {of}" + (f": {told}." if told else "."))
    open_: dict[str, int] = {}
    for one in found:
        if one.at is None:
            open_[one.why] = open_.get(one.why, 0) + 1
    lines += [f"Undecided in {count} {of}: {_WHY[why]}." for why, count in open_.items()]
    return [*lines, "Nearer in these numbers is not nearer in others, and says nothing of why."]


_WHY = {
    TIED: "no candidate is nearer outside the noise",
    UNKNOWN: "the noise is unknown",
    FEW: "one or two repeats, and nothing to draw again",
    OTHER_MEMBERS: "each pair has members of its own",
    APART: "fewer than two candidates can be compared",
}
