"""Outcome classes: what became of the requests of a run, counted alike for every tool, warm-up apart."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.metrics import PHASES
from dashboard.store import Result, Store

OUTCOMES: dict[str, str] = {
    "ok": "ok",
    "zero_output": "zero output",
    "unfinished": "ok, unfinished stream",
    "error": "error",
    "rejected": "rejected",
    "canceled": "canceled",
    "in_flight": "in flight",
}
"""Classes of the requests that were sent, in the order of a table, with the words that a reader sees."""
_SUCCESSES = ("ok", "zero_output", "unfinished")
"""Classes whose status is ok: what the ledger counts as successes."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Requests of one class of one phase. ``without_record`` of them are known by their number only.

    ``tool_words`` is the tool's own word for them, ``error_types`` its kinds of error; empty where it has none.
    """

    phase: str
    outcome: str
    requests: int
    without_record: int
    tool_words: str
    error_types: str


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The classes of one run. ``never_issued`` counts turns that were not sent, None where nobody counted."""

    rows: tuple[Outcome, ...]
    never_issued: int | None
    result: Result

    @property
    def phases(self) -> tuple[str, ...]:
        """Phases with requests, in the order of a run."""
        return tuple(
            name for name in ("primer", "warmup", "profile", "unknown") if any(row.phase == name for row in self.rows)
        )

    def count(self, outcome: str, phase: str = "profile") -> int:
        """Requests of a class and a phase."""
        return sum(row.requests for row in self.rows if row.outcome == outcome and row.phase == phase)

    def attempted(self, phase: str = "profile") -> int:
        """Requests sent in a phase: the sum of all classes."""
        return sum(row.requests for row in self.rows if row.phase == phase)

    def successes(self, phase: str = "profile") -> int:
        """Requests of status ok: those that a latency can come from, with or without one."""
        return sum(self.count(outcome, phase) for outcome in _SUCCESSES)

    def without_record(self, phase: str = "profile") -> int:
        """Requests of a phase that are known by their number only."""
        return sum(row.without_record for row in self.rows if row.phase == phase)


MOST_LISTED = 500
"""Requests that :func:`not_ok` lists of one run."""


def not_ok(store: Store, run_id: str, phase: str, most: int = MOST_LISTED) -> Result:
    """Requests dispatched in a phase of the bar (``all``: in any, unknown ones as well) that are no plain successes."""
    params = {"every": phase == "all", "of_phases": list(PHASES[phase]), "most": most}
    return store.query("not_ok", params, runs={"run": run_id})


def outcomes(store: Store, run_id: str) -> Outcomes:
    """Count the outcomes of a run; no rows, and a sentence in ``result.not_recorded``, where it has no requests."""
    result = store.query("outcomes", runs={"run": run_id}, row_cap=None)
    rows = [] if result.not_recorded else result.rows()
    found = [
        Outcome(**{**row, "tool_words": row["tool_words"] or "", "error_types": row["error_types"] or ""})
        for row in rows
    ]
    ledger = store.bundle(run_id).ledger or {}
    return Outcomes(tuple(found), ledger.get("total", {}).get("never_issued"), result)
