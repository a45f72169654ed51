"""The five rungs in order, which of them may be read, and what may be claimed."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.compare.align import benches, consistency, end_to_end, memory, reproduce
from dashboard.compare.align.memory import Presets
from dashboard.compare.align.reproduce import RESTS
from dashboard.compare.align.values import Check, Rung, Verdict, counted, needs, unknown, verdict_of
from dashboard.compare.comparison import pair_label
from dashboard.metrics import HEADLINE, Estimator, Population
from dashboard.queries.identity import identity, repeats
from dashboard.store import Store
from engine.errors import GapscopeError
from engine.replay.again import Again

TOLERANCE = 0.05
"""The default of a bound that is the reader's to choose."""
NAMED = 4
"""Checks that fail and are named in the sentence of a rung; the table has all."""
RUNGS = (
    ("Reproduce", "Does the same config give the same prediction? If not, stop: the gap is a difference of config."),
    (
        "Consistency arithmetic",
        "Does each side's arithmetic hold, and are as many requests in flight? A gap here is admission, memory or the "
        "client, not kernel speed.",
    ),
    ("Memory ledger", "Does each component of memory take what the engine says it took? Never totals: errors cancel."),
    ("Per-role benches", "At the geometry that was measured, does each class of pass last as long as the timing says?"),
    ("End to end", "Do the numbers of the whole agree? Only what the rungs below support may be claimed."),
)
"""Name and question, from the first rung on."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """All rungs of a pair. Each keeps its own verdict; one above a rung that fails is not to be read yet."""

    measured: str
    replay: str
    label: str
    population: Population
    estimator: Estimator
    tolerance: float
    repeats: tuple[str, ...]
    rungs: tuple[Rung, ...]
    regime: tuple[str, ...]
    presets: Presets
    acknowledged: bool

    @property
    def first_failed(self) -> Rung | None:
        """The lowest rung that fails."""
        return next((rung for rung in self.rungs if rung.verdict == "fail"), None)

    def readable(self, rung: Rung) -> bool:
        """Whether no rung below fails."""
        return self.first_failed is None or rung.number <= self.first_failed.number

    def rests_on(self, rung: Rung) -> tuple[Rung, ...]:
        """The rungs below that could not be judged: what this one shows, it shows without them."""
        return tuple(below for below in self.rungs if below.number < rung.number and below.verdict == "unknown")

    @property
    def current(self) -> Rung:
        """The rung to look at: the first while nobody played the replay again, then the lowest that fails, then the
        lowest that could not be judged, then the last."""
        open_ = next((rung for rung in self.rungs if rung.verdict == "unknown"), None)
        if open_ is self.rungs[0]:
            return open_
        return self.first_failed or open_ or self.rungs[-1]

    @property
    def claim(self) -> tuple[str, ...]:
        """What may be said end to end, and on what it rests."""
        return end_to_end.claim(self.rungs)

    @property
    def verdict(self) -> Verdict:
        """Of the whole: that of the lowest rung that fails, else of the last."""
        return "fail" if self.first_failed else self.rungs[-1].verdict


def align(
    store: Store,
    measured: str,
    replay: str,
    *,
    again: Again | None = None,
    population: Population = HEADLINE,
    estimator: Estimator = Estimator.LINEAR,
    tolerance: float = TOLERANCE,
    presets: Presets | None = None,
    acknowledged: bool = False,
) -> Alignment:
    """Climb the rungs for a measured run and a replay of it.

    Args:
        store: where the runs lie.
        measured: id of the measured run.
        replay: id of the replay.
        again: what came of playing the replay again, where somebody did.
        population: the requests that rungs 2, 4 and 5 are about.
        estimator: of percentiles.
        tolerance: how far a figure may be off, as a share of what is expected.
        presets: part and model of the measured run, where the replay's knobs do not name them.
        acknowledged: rung 5 is judged although the runs are not like for like.

    Raises:
        GapscopeError: a run is absent, altered, or of another kind; a tolerance outside 0 to 1.
    """
    for run_id, kind in ((measured, "measured"), (replay, "replay")):
        if store.bundle(run_id).kind != kind:
            raise GapscopeError(
                f"An alignment holds a replay against a measured run, and {run_id} is no {kind} run: choose the "
                "measured run first and a replay of it second."
            )
    if not 0 <= tolerance <= 1:
        raise GapscopeError(f"A tolerance of {tolerance:g}: expected a share from 0 to 1.")
    same = tuple(other for other in repeats(store, measured) if other != replay)
    named = presets or Presets()
    with store.steady():
        regime = tuple(row.label for row in identity(store, measured, replay).regime_differs)
        told = (
            reproduce.checks(store, replay, again),
            consistency.checks(store, measured, replay, population, same, tolerance),
            memory.checks(store, measured, replay, named, tolerance),
            benches.checks(store, measured, replay, population, same, tolerance),
            end_to_end.checks(store, (measured, replay), population, estimator, same, tolerance)
            if acknowledged or not regime
            else (_other_regime(regime),),
        )
    notes = {4: benches.notes(store.bundle(measured).identity)}
    return Alignment(
        measured=measured,
        replay=replay,
        label=pair_label(store, measured, replay),
        population=population,
        estimator=estimator,
        tolerance=tolerance,
        repeats=same,
        rungs=tuple(_rung(number, checks, notes.get(number, ())) for number, checks in enumerate(told, 1)),
        regime=regime,
        presets=named,
        acknowledged=acknowledged,
    )


def _other_regime(regime: tuple[str, ...]) -> Check:
    names = ", ".join(regime)
    return unknown(
        "numbers of the whole", "both", f"not like for like: {names} differ", "A replay of the measured deployment."
    )


def _rung(number: int, checks: tuple[Check, ...], notes: tuple[str, ...]) -> Rung:
    name, question = RUNGS[number - 1]
    verdict = verdict_of(checks)
    said = counted(checks)
    failed = [check for check in checks if check.verdict == "fail"]
    if number == 1 and failed:
        said += "".join(f"; {check.why}" for check in failed if check.name == RESTS)
        tables = [check for check in failed if check.name != RESTS]
        if tables:
            said += f"; the first table that differs is {tables[0].name.removeprefix('table ')}: {tables[0].why}"
    elif failed:
        more = f" and {len(failed) - NAMED} more" if len(failed) > NAMED else ""
        said += f"; off: {', '.join(_off(check) for check in failed[:NAMED])}{more}"
    return Rung(number, name, question, checks, verdict, f"{said[0].upper()}{said[1:]}.", needs(checks), notes)


def _off(check: Check) -> str:
    side = "" if check.side == "both" else f" ({check.side})"
    return f"{check.name}{side}" + (f" {check.off:+.1%}" if check.off is not None else "")
