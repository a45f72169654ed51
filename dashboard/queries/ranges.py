"""The time range that a question over time covers, and the deployment facts that questions need as numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from dashboard.metrics import Population
from dashboard.store import Result, Store


@dataclass(frozen=True, slots=True)
class Span:
    """Nanoseconds relative to profile start; ``end_ns`` is outside."""

    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """Its length; never negative."""
        return max(self.end_ns - self.start_ns, 0)

    def params(self) -> dict[str, int]:
        """As query parameters; an empty span is widened to 1 ns, so that bins exist."""
        return {"start_ns": self.start_ns, "end_ns": max(self.end_ns, self.start_ns + 1)}


def phase_span(store: Store, run_id: str, phases: tuple[str, ...]) -> Span | None:
    """From the first start to the last end of the named phases; None where the run has none of them."""
    spans = [p for p in store.bundle(run_id).phases if p.name in phases]
    if not spans:
        return None
    return Span(min(p.start_ns for p in spans), max(p.end_ns for p in spans))


def capture_span(store: Store, *run_ids: str) -> Span:
    """The whole recording: every phase, request and pass of the runs; one span for several runs, to share an axis."""
    starts, ends = [], []
    for run_id in run_ids:
        for phase in store.bundle(run_id).phases:
            starts.append(phase.start_ns)
            ends.append(phase.end_ns)
        for table in ("requests", "passes"):
            found = store.query(f"capture_{table}", runs={"run": run_id})
            if not found.not_recorded:
                row = found.one()
                starts += [row["start_ns"]] if row["start_ns"] is not None else []
                ends += [row["end_ns"]] if row["end_ns"] is not None else []
    return Span(min(starts, default=0), max(ends, default=0))


def no_times(store: Store, run_id: str, table: str = "requests") -> str | None:
    """A sentence where the rows of ``requests`` or ``passes`` have durations and no moment; None where they have."""
    if table not in store.tables(run_id) or not store.bundle(run_id).rows(table):
        return None
    if store.query(f"capture_{table}", runs={"run": run_id}).one()["start_ns"] is not None:
        return None
    return f"Not recorded: the tool keeps no times of the {table} of run {run_id}, so they have no place in time."


def without_end(requests: int, what: str) -> str:
    """What stands beside requests in flight, a ``mean`` or a ``curve``, where some have an unknown end; else empty."""
    if not requests:
        return ""
    many = f"{requests:,} request{'s' if requests > 1 else ''} without a recorded end"
    return f"{many} left out; the {what} is a lower bound"


def few_ends(requests: int, total: int) -> str:
    """Why nothing can be said of requests in flight, where most of those sent have an unknown end."""
    return f"Not recorded: {requests:,} of {total:,} requests have no recorded end."


def timed(store: Store, run_id: str, table: str, ask: Callable[[], Result]) -> Result:
    """What ``ask()`` gives, or the sentence why rows of ``table`` cannot be placed in time."""
    said = no_times(store, run_id, table)
    return Result(pa.table({}), "", not_recorded=said) if said else ask()


def population_span(store: Store, run_id: str, population: Population) -> Span | None:
    """Start of the population's phase to its admission deadline."""
    return phase_span(store, run_id, population.phases)


def block_size(store: Store, run_id: str) -> int | None:
    """Tokens per KV block, where the identity knows it."""
    value = store.bundle(run_id).identity.value("capacity", "block_size")
    return None if value is None else int(value)


def lanes(store: Store, run_id: str) -> int | None:
    """Configured concurrency in sessions, where the identity knows it."""
    value = store.bundle(run_id).identity.value("client", "lanes")
    return None if value is None else int(value)


def gpus(store: Store, run_id: str) -> int | None:
    """How many GPUs the deployment has; None where the identity does not say, or says another kind of part."""
    identity = store.bundle(run_id).identity
    part, count = identity.value("hardware", "part"), identity.value("hardware", "count")
    if part is None or count is None:
        return None
    known = ("nvidia", "amd instinct", "gpu", "h100", "h200", "b200", "gb200", "a100", "mi3")
    return int(count) if any(name in str(part).lower() for name in known) else None
