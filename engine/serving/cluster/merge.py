"""Records of several schedulers as one, in which passes say whose they are, and the way back to each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from engine.serving.contract import Columns, ServerRecord

Ints = npt.NDArray[np.int64]
Part = tuple[int, int, ServerRecord]
"""Number of a worker, rank within it, and what it did."""

_SHIFTED = {
    "stretches": {"first_pass": "pass", "last_pass": "pass", "seq": "seq"},
    "prefill_chunks": {"pass_index": "pass", "seq": "seq"},
    "admissions": {"pass_index": "pass", "seq": "seq"},
    "preemptions": {"pass_index": "pass"},
    "events": {"pass_index": "pass", "first_key": "key"},
    "host_events": {"pass_index": "pass", "first_key": "host_key"},
}
"""Which columns of a table number passes, admissions or keys."""
_PASSES_OF_REQUESTS = ("first_admit_pass", "first_token_pass", "last_token_pass")
_ADDED_UP = ("recomputed_tokens", "preemptions", "output_tokens")
WORKER_COLUMNS = ("worker", "dp_rank", "step")
"""What merging adds to passes; all but ``step`` to requests."""


def merge_records(parts: Sequence[Part]) -> ServerRecord:
    """One record of what several schedulers did, each with its own passes.

    Passes of one worker and rank follow each other, in the order of ``parts``; admissions and keys likewise, so that
    ranges of passes stay ranges. Passes get the columns ``worker, dp_rank, step`` (own number of the pass), requests
    ``worker, dp_rank``. A part that was merged of ranks before keeps their numbers. Where several served a request, the
    parts must come in the order in which they did: its beginnings are the first's, its end, worker and rank the last's,
    and counts add up.
    """
    records = [record for _, _, record in parts]
    bases = {
        "pass": _bases([len(record.passes["start_ns"]) for record in records]),
        "seq": _bases([len(record.admissions["seq"]) for record in records]),
        "key": _bases([len(record.event_keys) for record in records]),
        "host_key": _bases([len(record.host_keys) for record in records]),
    }

    def joined(table: str) -> Columns:
        """The rows of all parts, one part after the other, their numbers shifted."""
        tables: list[Columns] = [getattr(record, table) for record in records]
        shifts = {name: bases[what] for name, what in _SHIFTED[table].items()}
        return {
            name: np.concatenate([rows[name] + by for rows, by in zip(tables, shifts[name], strict=True)])
            if name in shifts
            else np.concatenate([rows[name] for rows in tables])
            for name in tables[0]
        }

    return ServerRecord(
        passes=_passes(parts),
        requests=_requests(parts, bases["pass"]),
        stretches=joined("stretches"),
        prefill_chunks=joined("prefill_chunks"),
        admissions=joined("admissions"),
        preemptions=joined("preemptions"),
        events=joined("events"),
        event_keys=np.concatenate([record.event_keys for record in records]),
        host_events=joined("host_events"),
        host_keys=np.concatenate([record.host_keys for record in records]),
        bursts=_bursts(records),
        verify_width=max(record.verify_width for record in records),
    )


def _bases(counts: Sequence[int]) -> list[int]:
    """How many there are before each part."""
    return [0, *np.cumsum(counts[:-1]).tolist()]


def _passes(parts: Sequence[Part]) -> Columns:
    tables: list[Columns] = []
    for worker, rank, record in parts:
        count = len(record.passes["start_ns"])
        own = {"dp_rank": np.zeros(count, np.int64), "step": np.arange(count), **record.passes}
        tables.append({**own, "worker": np.full(count, worker), "dp_rank": own["dp_rank"] + rank})
    return {name: np.concatenate([own[name] for own in tables]) for name in tables[0]}


def _requests(parts: Sequence[Part], first_pass: Sequence[int]) -> Columns:
    """One row per request, from whoever served it; -1 and no counts where nobody did."""
    count = max(len(record.requests["received_ns"]) for _, _, record in parts)
    out: Columns = {}
    served = np.zeros(count, np.bool_)
    for (worker, rank, record), base in zip(parts, first_pass, strict=True):
        rows = dict(record.requests)
        own_rank = rows.pop("dp_rank", np.zeros(len(rows["received_ns"]), np.int64))
        rows |= {"worker": np.full(len(own_rank), worker), "dp_rank": own_rank + rank}
        for name in _PASSES_OF_REQUESTS:
            rows[name] = np.where(rows[name] >= 0, rows[name] + base, -1)
        here = np.flatnonzero((rows["received_ns"] != -1) | (rows["first_admit_pass"] >= 0) | rows["aborted"])
        first = here[~served[here]]
        for name, column in rows.items():
            if name not in out:
                nothing = 0 if column.dtype == np.bool_ or name in (*_ADDED_UP, "worker", "dp_rank") else -1
                out[name] = np.full(count, nothing, column.dtype)
            if name in _ADDED_UP:
                out[name][here] += column[here]
            elif name in ("worker", "dp_rank"):
                out[name][here] = column[here]
            elif name == "last_token_pass":
                out[name][here] = np.where(column[here] >= 0, column[here], out[name][here])
            elif name == "aborted":
                out[name][here] |= column[here]
            else:
                out[name][first] = column[first]
        served[here] = True
    return out


def _bursts(records: Sequence[ServerRecord]) -> Ints:
    """Tokens by pass of each stretch; a part without has sampled one in each."""
    if not any(len(record.bursts) for record in records):
        return np.empty(0, np.int64)
    ones = [record.stretches["last_pass"] - record.stretches["first_pass"] + 1 for record in records]
    return np.concatenate(
        [
            record.bursts if len(record.bursts) else np.ones(own.sum(), np.int64)
            for record, own in zip(records, ones, strict=True)
        ]
    )


def pass_ranges(record: ServerRecord) -> list[tuple[int, int]]:
    """The passes of each worker and rank, as (first, last + 1) in the order of the record.

    Whoever had none is left out. A record that was not merged has one range.
    """
    count = len(record.passes["start_ns"])
    if "worker" not in record.passes or not count:
        return [(0, count)]
    worker, rank = record.passes["worker"], record.passes["dp_rank"]
    changes = np.flatnonzero((np.diff(worker) != 0) | (np.diff(rank) != 0)) + 1
    bounds = [0, *changes.tolist(), count]
    return list(pairwise(bounds))


def within(record: ServerRecord, first: int, last: int) -> ServerRecord:
    """The stretches and prefill chunks of one worker and rank, whose passes are ``first .. last - 1``.

    Passes keep the numbers that they have in ``record``; its other tables stay whole.
    """
    chunks, stretches = record.prefill_chunks, record.stretches
    low, high = np.searchsorted(chunks["pass_index"], [first, last])
    begin, end = np.searchsorted(stretches["first_pass"], [first, last])
    bursts = record.bursts
    if len(bursts):
        ends = np.cumsum(stretches["last_pass"] - stretches["first_pass"] + 1)
        bursts = bursts[ends[begin - 1] if begin else 0 : ends[end - 1] if end else 0]
    return replace(
        record,
        prefill_chunks={name: column[low:high] for name, column in chunks.items()},
        stretches={name: column[begin:end] for name, column in stretches.items()},
        bursts=bursts,
    )
