"""What became of every request, and whether the count adds up.

A ledger is ``{phase: {attempted, ok, error, rejected, canceled, in_flight}, ..., "total": {the same,
never_issued, in_graph}}``. ``never_issued`` counts turns of started plays that were never sent; they belong to no
phase. NULL there means that nobody counted them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from engine.bundle.schema import PHASES

OUTCOMES = ("ok", "error", "rejected", "canceled", "in_flight")

Outcomes = Counter[tuple[str | None, str]]
"""Number of request rows by (phase, status)."""


def count_outcomes(requests: pa.Table | pa.RecordBatch) -> Outcomes:
    """Request rows by phase and status."""
    phases, statuses = (requests.column(name).to_pylist() for name in ("phase", "status"))
    return Counter(zip(phases, statuses, strict=True))


def ledger_from(outcomes: Mapping[tuple[str | None, str], int], never_issued: int | None = None) -> dict[str, Any]:
    """The ledger that these rows make.

    ``never_issued`` may be larger than the number of such rows (they are optional); None takes the rows, and
    stays None when there are none.
    """
    ledger: dict[str, Any] = {}
    phases = {phase for (phase, status) in outcomes if status != "never_issued"}
    for phase in (p for p in (*PHASES, None) if p in phases):
        row = {status: outcomes.get((phase, status), 0) for status in OUTCOMES}
        ledger[phase or "unknown"] = {"attempted": sum(row.values()), **row}
    names = ("attempted", *OUTCOMES)
    total: dict[str, int | None] = {name: sum(row[name] for row in ledger.values()) for name in names}
    rows = sum(n for (_, status), n in outcomes.items() if status == "never_issued")
    total["never_issued"] = rows if never_issued is None and rows else never_issued
    attempted, missing = total["attempted"], total["never_issued"]
    total["in_graph"] = None if missing is None or attempted is None else attempted + missing
    return {**ledger, "total": total}


def ledger_of(requests: pa.Table, never_issued: int | None = None) -> dict[str, Any]:
    """The balancing ledger of a requests table, with the turns that were never sent beside it."""
    return ledger_from(count_outcomes(requests), never_issued)


def ledger_problems(ledger: Mapping[str, Any], outcomes: Mapping[tuple[str | None, str], int] | None) -> list[str]:
    """In words, what does not add up: inside the ledger, and against the rows where there are any."""
    problems = []
    for phase, row in ledger.items():
        counts = [row.get(name) for name in OUTCOMES]
        if None in (row.get("attempted"), *counts):
            problems.append(f"{phase}: not every outcome is counted")
        elif row["attempted"] != sum(counts):
            problems.append(f"{phase}: attempted {row['attempted']} but outcomes sum to {sum(counts)}")
    total = ledger.get("total", {})
    missing, graph = total.get("never_issued"), total.get("in_graph")
    if None not in (missing, graph, total.get("attempted")) and graph != total["attempted"] + missing:
        problems.append(f"total: in_graph {graph} is not attempted {total['attempted']} + never_issued {missing}")
    if outcomes is None:
        return problems
    expected = ledger_from(outcomes)
    for phase in dict.fromkeys((*expected, *ledger)):
        for name in ("attempted", *OUTCOMES):
            counted, said = expected.get(phase, {}).get(name, 0), ledger.get(phase, {}).get(name, 0)
            if counted != said:
                problems.append(f"{phase}: {name} is {said} in the ledger, {counted} in the rows")
    if missing is not None and missing < (expected["total"]["never_issued"] or 0):
        problems.append(f"total: never_issued is {missing}, the rows hold {expected['total']['never_issued']}")
    return problems
