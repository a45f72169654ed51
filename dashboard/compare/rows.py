"""One number on both sides: gap, noise and the state that follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dashboard.compare.noise import INSIDE, OUTSIDE, UNKNOWN, Noise, noise, open_words, place, place_words
from dashboard.compare.numbers import Key, Number, number
from dashboard.metrics import Estimator, Population
from dashboard.store import Store
from engine.definitions import Refusal, caveats, refusal

State = Literal["better", "worse", "differs", "~", "open", "same", "repeat", "not comparable"]


@dataclass(frozen=True, slots=True)
class Row:
    """One number on both sides. ``gap`` = replay / measured - 1, signed, on unrounded values.

    ``state`` reads from the replay's side: ``~`` is inside the noise, ``differs`` a number without a better side,
    ``open`` beyond one or two repeats that redrawing does not confirm, ``repeat`` a repeat of the measured run, which
    says what the noise is. ``reason`` says why a pair is not comparable, or what the state rests on.
    """

    key: Key
    measured: Number
    replay: Number
    gap: float | None
    noise: Noise | None
    state: State
    reason: str

    @property
    def weak(self) -> bool:
        """Whether a percentile rests on too few values on a side that has any."""
        return any(side.n > 0 and not side.supported for side in (self.measured, self.replay))


USUAL, ALIKE = ("measured", "replay"), ("reference", "compared with it")
"""What the two sides are called: a recording and a replay of it, and any other two; columns keep their names."""


def places(first: str, second: str) -> tuple[str, str]:
    """What the sides are called, by the kinds of their runs: a replay in first place is measured by no word."""
    return ALIKE if first in (second, "replay") else USUAL


def places_of(store: Store, measured: str, replay: str) -> tuple[str, str]:
    """The same of two runs of the store."""
    return places(store.bundle(measured).kind, store.bundle(replay).kind)


NEARLY = "under 0.05 %"
"""What is said of a gap that would be shown as 0.0 %: which way it points could not be read off the page."""


def nearly_equal(row: Row) -> bool:
    """Whether a gap is not zero and rounds to 0.0 %, as gaps are shown."""
    return row.gap is not None and 0 < abs(row.gap) < 0.0005


REPEAT = "a repeat: it is the noise"


def judged(row: Row) -> str:
    """What stands beside a gap on every page: better or worse, and whether that is inside the noise."""
    if row.state == "~":
        return INSIDE
    if row.state == "open":
        return open_words(row.noise)
    if row.state == "repeat":
        return REPEAT
    if row.state in ("same", "not comparable"):
        return row.state
    return f"{NEARLY if nearly_equal(row) else row.state}, {OUTSIDE if row.noise else UNKNOWN}"


def judged_change(change: float | None, spread: Noise | None) -> str:
    """The same of a difference that has no row: ``spread`` is that of differences when nothing changes."""
    return "not comparable" if change is None else place_words(spread, change)


_MADE_OF = {"in_flight.little": "e2e"}
"""Numbers that are made of a metric and share what can be said of it."""
NO_ROWS = Refusal(
    "One side is a summary: figures of a tool by its own rules, without rows.",
    "Import the records of the run as well.",
)


def refused(store: Store, measured: str, replay: str, metric: str | Key) -> Refusal | None:
    """Why a metric or number of two runs is not one and the same quantity by their definitions; None where it may be.

    A summary without rows is never differenced.
    """
    left, right = store.bundle(measured), store.bundle(replay)
    if "imported_summary" in (left.kind, right.kind):
        return NO_ROWS
    return refusal(_quantity(metric), left.identity, right.identity)


def to_be_said(store: Store, measured: str, replay: str, metric: str | Key) -> list[str]:
    """What must be said beside a metric or number that is not refused: rules of the two runs that differ in part."""
    return caveats(_quantity(metric), store.bundle(measured).identity, store.bundle(replay).identity)


def _quantity(metric: str | Key) -> str:
    """The metric whose definitions a number has."""
    return metric if isinstance(metric, str) else _MADE_OF.get(str(metric), metric.metric)


def compare_number(
    store: Store,
    pair: tuple[str, str],
    key: Key,
    population: Population,
    estimator: Estimator,
    repeats: tuple[str, ...],
) -> Row:
    """One number on both sides, with gap, noise and state; ``repeats`` are other runs of the measured experiment.

    A repeat that is compared itself has no better or worse: the noise is made of it.
    """
    measured, replay = pair
    names = places_of(store, measured, replay)
    said = refused(store, measured, replay, key)
    own = population.for_side(replay)
    left = number(store, measured, key, own, estimator)
    right = number(store, replay, key, population.for_side(measured), estimator)
    if left.value is None or right.value is None:
        side, missing = (names[0], left) if left.value is None else (names[1], right)
        return Row(key, left, right, None, None, "not comparable", f"{side}: {missing.why or 'undefined'}")
    if said:
        return Row(key, left, right, None, None, "not comparable", str(said))
    spread = noise(store, measured, key, own, estimator, repeats, left)
    gap = right.value / left.value - 1 if left.value else None
    notes = "".join(f"; {said}" for said in (*_notes(names, left, right), *to_be_said(store, measured, replay, key)))
    if right.value == left.value:
        return Row(key, left, right, gap, spread, "same", f"equal values{notes}")
    if replay in repeats:
        return Row(key, left, right, gap, spread, "repeat", f"{REPEAT}{notes}")
    where = place(spread, right.value)
    if spread is not None and where == "inside":
        return Row(key, left, right, gap, spread, "~", f"inside the noise: {spread.words}{notes}")
    if spread is not None and where == "open":
        return Row(key, left, right, gap, spread, "open", f"{open_words(spread)}: {spread.words}{notes}")
    reason = (f"outside the noise: {spread.words}" if spread else "noise unknown: no repeat in the store") + notes
    if key.direction == "neither":
        return Row(key, left, right, gap, spread, "differs", reason)
    better = (right.value < left.value) == (key.direction == "lower")
    return Row(key, left, right, gap, spread, "better" if better else "worse", reason)


def _notes(names: tuple[str, str], *sides: Number) -> list[str]:
    """What the values of either side leave out."""
    return [f"{side}: {found.note}" for side, found in zip(names, sides, strict=True) if found.note]
