"""One run as it stands beside others: who made it, what became of its requests, what was noticed about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dashboard.compare.beside import Figure
from dashboard.metrics import Population
from dashboard.queries.outcomes import OUTCOMES, Outcome, Outcomes, outcomes
from dashboard.store import Store
from engine.bundle import Bundle

SUCCESSES = ("completed", "request_count", "successful", "num_completed_requests", "num_requests_successful")
"""Names under which tools report how many requests succeeded."""


def tool_of(bundle: Bundle, unnamed: str) -> str:
    """The tool that a run comes from, with its version; ``unnamed`` where its files do not say."""
    told = bundle.lineage.get("tool") or bundle.identity.value("client", "generator")
    if not told:
        return "gapscope replay" if bundle.kind == "replay" else unnamed
    version = bundle.lineage.get("tool_version") or bundle.identity.value("client", "version")
    return f"{told} {version}" if version else str(told)


@dataclass(frozen=True, slots=True)
class ToolRun:
    """One of the runs: its letter in every table, who made it, and what became of its requests."""

    letter: str
    bundle: Bundle
    outcomes: Outcomes
    flags: Mapping[str, int]
    tool_successes: tuple[str, float] | None  # the tool's own count, and what it calls it

    @property
    def run_id(self) -> str:
        """Content id of the run."""
        return self.bundle.run_id

    @property
    def tool(self) -> str:
        """The tool and its version, as its files say."""
        return tool_of(self.bundle, "tool not said")

    @property
    def rows(self) -> bool:
        """Whether the run has rows of requests, which every number is computed from."""
        return "requests" in self.bundle.tables

    def of(self, outcome: str, population: Population) -> list[Outcome]:
        """The requests of an outcome class, a row per phase of the population."""
        return [row for row in self.outcomes.rows if row.outcome == outcome and row.phase in population.phases]

    def count(self, outcome: str, population: Population) -> int | None:
        """How many requests are of an outcome class; None without rows."""
        return sum(row.requests for row in self.of(outcome, population)) if self.rows else None

    def attempted(self, population: Population) -> int | None:
        """How many requests were sent; None without rows."""
        return sum(self.count(name, population) or 0 for name in OUTCOMES) if self.rows else None

    def words(self, outcome: str, population: Population) -> str:
        """What the tool itself calls the requests of a class; empty where it has no word."""
        told = [row.tool_words for row in self.of(outcome, population) if row.tool_words]
        return ", ".join(dict.fromkeys(told))


def tool_run(store: Store, letter: str, run_id: str, told: Sequence[Figure], population: Population) -> ToolRun:
    """The run of an id, with the letter that it has here."""
    flags: dict[str, int] = {}
    if "requests" in store.tables(run_id):
        rows = store.query("flag_counts", runs={"run": run_id}, population=population).rows()
        flags = {row["flag"]: row["requests"] for row in rows}
    own = next((one for one in told if one.scope == "run" and one.name.rpartition(".")[2] in SUCCESSES), None)
    return ToolRun(letter, store.bundle(run_id), outcomes(store, run_id), flags, (own.name, own.value) if own else None)


def classes(runs: Sequence[ToolRun], population: Population) -> list[str]:
    """The outcome classes that any of the runs has, in the order of a table."""
    return [name for name in OUTCOMES if any(run.count(name, population) for run in runs)]
