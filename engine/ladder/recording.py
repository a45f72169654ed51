"""What the ladder takes from a measured run, in the terms of the client and of the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from engine.bundle import Bundle
from engine.errors import GapscopeError
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
        GapscopeError: the run did not record who was in its batches, or has those of several schedulers.
    """
    passes = bundle.table("passes", ["worker_id", "dp_rank", "members"])
    lists = pa.chunked_array([], pa.list_(pa.null())) if passes is None else passes["members"]
    sizes = pc.fill_null(pc.list_value_length(lists), 0)
    if passes is None or not pc.any(pc.greater(sizes, 0)).as_py():
        raise GapscopeError(f"Run {bundle.run_id} does not record who was in its batches (passes.members).")
    ranks = set(zip(passes["worker_id"].to_pylist(), passes["dp_rank"].to_pylist(), strict=True))
    if len(ranks) > 1:
        raise GapscopeError(
            f"Run {bundle.run_id} has the batches of {len(ranks)} schedulers (workers or ranks): expected one."
        )
    flat = lists.combine_chunks().flatten()
    names = flat.field("request_id").dictionary_encode()
    number = np.array([index.get(name, -1) for name in names.dictionary.to_pylist()], np.int64)
    found = number[names.indices.to_numpy()]
    keep = found >= 0
    left = Counter({"batch members of requests that are not sent": int((~keep).sum())})
    columns = [
        np.repeat(np.arange(len(passes)), sizes.to_numpy()),
        found,
        *(_whole(flat.field(name)) for name in ("computed_before", "scheduled_tokens")),
    ]
    return Members(*(column[keep] for column in columns)), +left


def _whole(column: pa.Array) -> np.ndarray:
    return pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64)
