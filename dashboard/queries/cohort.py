"""Who took part: ledgers, requests over time, lanes, and source-turns that only one side finished."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from dashboard.metrics import Population
from dashboard.queries.ranges import Span, capture_span, timed
from dashboard.queries.totals import totals
from dashboard.store import Result, Store
from engine.bundle.ledger import ledger_from, ledger_problems


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One phase: ``attempted`` = ok + error + rejected + canceled + in_flight, or the run does not balance."""

    phase: str
    attempted: int
    ok: int
    error: int
    rejected: int
    canceled: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """What became of every request of a run, counted from its rows.

    ``never_issued`` counts turns of started plays that were not sent, None when nobody counted them. ``problems`` are
    sentences: what the rows and the sealed ledger disagree on. Empty is balanced.
    """

    rows: tuple[LedgerRow, ...]
    never_issued: int | None
    in_graph: int | None
    problems: tuple[str, ...]
    result: Result

    @property
    def balanced(self) -> bool:
        """Whether the rows add up and agree with the ledger that was sealed with the run."""
        return not self.problems


def ledger(store: Store, run_id: str) -> Ledger:
    """The ledger by phase of dispatch, counted from the rows and checked against the sealed one."""
    result = store.query("ledger", runs={"run": run_id})
    outcomes = {(row["phase"], row["status"]): row["requests"] for row in result.rows()}
    sealed = store.bundle(run_id).ledger
    problems = ["The run has no sealed ledger."] if sealed is None else ledger_problems(sealed, outcomes)
    counted = ledger_from(outcomes, (sealed or {}).get("total", {}).get("never_issued"))
    total = counted.pop("total")
    rows = tuple(LedgerRow(phase, **found) for phase, found in counted.items())
    return Ledger(rows, total["never_issued"], total["in_graph"], tuple(problems), result)


def in_flight(store: Store, run_id: str, span: Span | None = None, bins: int = 240) -> Result:
    """Columns ``time_ns, in_flight, dispatched, without_end, admitted, completed, ended_otherwise``; one row per bin.

    ``in_flight`` is exact at the start of the bin but for the dispatched ``without_end``, and None where these are the
    most; the counts are those inside the bin.
    """
    params = {"bins": bins, **(span or capture_span(store, run_id)).params()}
    return timed(store, run_id, "requests", lambda: store.query("in_flight", params, runs={"run": run_id}))


def lanes(
    store: Store, run_id: str, span: Span | None = None, first_lane: int = 0, lanes: int = 64, row_cap: int = 3000
) -> Result:
    """One row per request for a Gantt chart of lanes, with the lane's idle time (think time included) before it.

    A sentence and no rows where no request says on which lane it was sent.
    """
    if said := _no_lanes(store, run_id):
        return Result(pa.table({}), "", not_recorded=said)
    params = {"first_lane": first_lane, "lanes": lanes, **(span or capture_span(store, run_id)).params()}
    return timed(store, run_id, "requests", lambda: store.query("lanes", params, runs={"run": run_id}, row_cap=row_cap))


def _no_lanes(store: Store, run_id: str) -> str:
    """A sentence where the requests of a run have no lanes; empty where one has, or there are no requests."""
    found = store.query("with_lane", runs={"run": run_id})
    if found.not_recorded or found.one()["requests"] or not store.bundle(run_id).rows("requests"):
        return ""
    tool = store.bundle(run_id).lineage.get("tool")
    return f"Not recorded: {tool or 'the source'} keeps no lanes, so run {run_id} has no rows by lane."


def one_sided(store: Store, measured: str, replay: str, population: Population) -> Result:
    """Source-turns that succeeded in the phases of ``population`` on one side only, and what they were on the other.

    ``requests`` sums to the remainder of :class:`MatchedSubset`, but for source-turns that succeeded on both sides and
    make no pair: sent more than once, or of lengths too far apart. Runs that cannot be joined by source-turn have no
    rows, but a sentence: nobody knows what a turn of one was on the other.
    """
    if said := not_joined(store, measured, replay):
        return Result(pa.table({}), "", not_recorded=said)
    return store.query("one_sided", runs={"measured": measured, "replay": replay}, population=population, row_cap=None)


def not_joined(store: Store, measured: str, replay: str) -> str:
    """Why two runs cannot be joined by source-turn, as a sentence; empty where they can."""
    found = store.query("shared_names", runs={"measured": measured, "replay": replay})
    if found.not_recorded:
        return ""
    names = found.one()
    nameless = [run_id for run_id, side in ((measured, "measured"), (replay, "replay")) if not names[side]]
    if nameless:
        return f"Cannot be joined: the source-turns of {' and '.join(nameless)} are not recorded."
    if not names["shared"]:
        return (
            f"Cannot be joined: no source-turn of {measured} goes by the same name in {replay}. Either they sent other "
            "work, or their tools name the same work differently."
        )
    return ""


@dataclass(frozen=True, slots=True)
class MatchedSubset:
    """The shared source-turns beside the denominators of both sides."""

    rule: str
    matched: int
    measured_attempted: int
    measured_ok: int
    replay_attempted: int
    replay_ok: int

    @property
    def measured_remainder(self) -> int:
        """Successes of the measured side outside the subset."""
        return self.measured_ok - self.matched

    @property
    def replay_remainder(self) -> int:
        """Successes of the replay outside the subset."""
        return self.replay_ok - self.matched


def matched_subset(store: Store, measured: str, replay: str, population: Population) -> MatchedSubset:
    """How many source-turns the two sides share under the rule of ``population`` (``matched`` when it has none)."""
    rule = population if population.matched else Population(population.phase, "matched")
    complete = Population(population.phase)
    left, right = totals(store, measured, complete), totals(store, replay, complete)
    return MatchedSubset(
        rule=rule.words,
        matched=totals(store, measured, rule.for_side(replay)).total("ok"),
        measured_attempted=left.total("attempted"),
        measured_ok=left.total("ok"),
        replay_attempted=right.total("attempted"),
        replay_ok=right.total("ok"),
    )
