"""What the ladder takes from a measured run, in the terms of the client and of the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from engine.bundle import Bundle
from engine.errors import GapscopeError
from engine.parity.recorded import batches_of, computing_passes
from engine.serving.members import Members
from engine.workload.recorded import RecordedTurn

_SAME = ("request_id", "source_trace_id", "conversation_id", "turn_index", "play_id", "lane")
_COLUMNS = (
    *_SAME,
    "status",
    "scheduled_ns",
    "dispatched_ns",
    "received_ns",
    "first_admit_ns",
    "end_ns",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
)
_ORDER = ("dispatched_ns", "received_ns", "first_admit_ns")
_LAST = 1 << 62


def recorded_turns(bundle: Bundle) -> tuple[list[RecordedTurn], Counter[str]]:
    """The requests that a measured run sent to its engine, in that order, and how many rows say nothing of that kind.

    Of two sent at one time, the one that the engine took or admitted first comes first.

    Raises:
        GapscopeError: the run recorded none.
    """
    table = bundle.table("requests", list(_COLUMNS))
    rows = [] if table is None else table.to_pylist()
    left: Counter[str] = Counter()
    ends = [phase.end_ns for phase in bundle.phases] + [row["end_ns"] or 0 for row in rows]
    turns = []
    rows.sort(key=lambda row: [_LAST if row[name] is None else row[name] for name in _ORDER])
    for row in rows:
        if row["status"] == "never_issued":
            continue
        if row["status"] == "rejected" or row["dispatched_ns"] is None:
            left["requests that never got to the engine"] += 1
            continue
        ok, canceled = row["status"] == "ok", row["end_ns"]
        if not ok and canceled is None:
            left["requests without an end, given up at the end of the recording"] += 1
            canceled = max(ends)
        turns.append(
            RecordedTurn(
                **{name: row[name] for name in _SAME},
                scheduled_ns=row["scheduled_ns"],
                dispatched_ns=row["dispatched_ns"],
                canceled_ns=None if ok else canceled,
                input_tokens=row["input_tokens"] or 0,
                output_tokens=row["output_tokens"] if ok else None,
                cached_tokens=row["cached_tokens"],
            )
        )
    if not turns:
        raise GapscopeError(f"Run {bundle.run_id} has no requests that its engine got.")
    return turns, left


def recorded_batches(bundle: Bundle, index: Mapping[str, int]) -> tuple[Members, Counter[str]]:
    """The batches of a measured run by the index of each request, and how many members have none.

    Raises:
        GapscopeError: see :func:`engine.parity.recorded.computing_passes`.
    """
    names, batches = batches_of(computing_passes(bundle))
    found = np.array([index.get(name, -1) for name in names], np.int64)[batches.index]
    keep = found >= 0
    left = Counter({"batch members of requests that are not sent": int((~keep).sum())})
    columns = (batches.pass_index, found, batches.computed_before, batches.scheduled_tokens)
    return Members(*(column[keep] for column in columns)), +left
