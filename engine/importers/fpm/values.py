"""What a record claims against what can be: impossible values become NULL and are counted, negative counts are bad."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from engine import arrays
from engine.importers.fpm.records import SCHEMA
from engine.intake import BadRows

LONGEST_S = 600.0
"""No pass takes longer; whatever says so measured something else."""

_INTEGERS = [f.name for f in SCHEMA if f.type == pa.int64() and f.name not in ("received_ns", "wire_counter")]
_VARIANCES = [f.name for f in SCHEMA if "var_" in f.name]
_COUNT_OF = {
    name: name.replace("var_prefill_length", "num_prefill_requests").replace(
        "var_decode_kv_tokens", "num_decode_requests"
    )
    for name in _VARIANCES
}
_DECODES, _DECODE_KV = "num_decode_requests", "sum_decode_kv_tokens"
_KEPT = [f for f in SCHEMA if f.name not in ("received_ns", "wire_counter", "version", "wall_s")]
PASS_SCHEMA = pa.schema([*_KEPT, *((name, pa.int64()) for name in ("start_ns", "end_ns", "duration_ns"))])
"""Columns of a pass, of which every form of FPM fills some."""

Flags = npt.NDArray[np.bool_]


@dataclass
class Oddities:
    """Values that cannot be, by kind, with the first of each; and what else is counted on the way."""

    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    heartbeats: int = 0
    rewired: int = 0
    """Records whose wire counter is not their own."""
    timed: int = 0

    def note(self, what: str, where: Flags, batch: pa.RecordBatch) -> None:
        """Count rows of ``batch`` under ``what``."""
        if where.any():
            self.counts[what] += int(where.sum())
            row = batch.slice(int(np.argmax(where)), 1).to_pylist()[0]
            self.first.setdefault(what, f"worker {row['worker_id']}, rank {row['dp_rank']}, counter {row['counter']}")


def to_passes(numbers: Sequence[int], batch: pa.RecordBatch, where: str, bad: BadRows, odd: Oddities) -> pa.RecordBatch:
    """Records (``SCHEMA``) as passes (``PASS_SCHEMA``); rows with a negative count are bad rows."""
    batch = _without_negative(numbers, batch, where, bad)
    columns = {name: batch.column(name) for name in batch.schema.names}
    for name in _VARIANCES:
        values = _reals(columns[name])
        wrong = ~_null(columns[name]) & (~np.isfinite(values) | (values < 0))
        odd.note("variances below zero or not finite", wrong, batch)
        columns[name] = _nulled(columns[name], wrong | _zero(columns[_COUNT_OF[name]]))  # over nobody there is none
    prefills, decodes = columns["num_prefill_requests"], columns["num_decode_requests"]
    tokens = _positive(columns["sum_prefill_tokens"]) | _positive(columns["sum_prefill_kv_tokens"])
    for what, wrong, name in (
        ("prefill tokens without a prefill request", _zero(prefills) & tokens, "num_prefill_requests"),
        ("decode KV without a decode request", _zero(decodes) & _positive(columns["sum_decode_kv_tokens"]), _DECODES),
        ("decode requests without KV", _positive(decodes) & _zero(columns["sum_decode_kv_tokens"]), _DECODE_KV),
    ):
        odd.note(what, wrong, batch)
        columns[name] = _nulled(columns[name], wrong)

    wall = _reals(columns["wall_s"])
    unknown = _null(columns["wall_s"])
    active = ~(_zero(columns["num_prefill_requests"]) & _zero(columns[_DECODES]))
    impossible = ~unknown & (~np.isfinite(wall) | (wall < 0) | (wall > LONGEST_S))
    odd.note(f"durations below zero, above {LONGEST_S:.0f} s or not finite", impossible, batch)
    timeless = ~unknown & (wall == 0)
    odd.note("passes with requests and no duration", timeless & active, batch)
    odd.heartbeats += int((timeless & ~active).sum())
    known = ~(unknown | impossible | timeless)
    duration = np.zeros(len(wall), np.int64)
    duration[known] = np.rint(wall[known] * 1e9).astype(np.int64)
    columns["duration_ns"] = arrays.numbers(duration, known)

    columns["end_ns"] = columns["received_ns"]
    stood = np.where(known, duration, 0)  # a heartbeat is an instant
    columns["start_ns"] = pc.subtract(columns["received_ns"], arrays.numbers(stood))
    odd.timed += batch.num_rows - columns["received_ns"].null_count
    wire, own = columns["wire_counter"], columns["counter"]
    odd.rewired += int(pc.sum(pc.not_equal(wire, own)).as_py() or 0)
    return pa.record_batch([columns[f.name] for f in PASS_SCHEMA], schema=PASS_SCHEMA)


def _without_negative(numbers: Sequence[int], batch: pa.RecordBatch, where: str, bad: BadRows) -> pa.RecordBatch:
    keep = np.ones(batch.num_rows, dtype=bool)
    for name in _INTEGERS:
        negative = _integers(batch.column(name)) < 0
        for row in np.flatnonzero(negative & keep):
            bad.add(f"{where} {numbers[int(row)]}", f"{name} is {batch.column(name)[row]}, expected at least 0")
        keep &= ~negative
    return batch if keep.all() else batch.filter(arrays.numbers(keep))


def _zero(column: pa.Array) -> Flags:
    return ~_null(column) & (_integers(column) == 0)


def _positive(column: pa.Array) -> Flags:
    return _integers(column) > 0


def _integers(column: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(column.fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)


def _reals(column: pa.Array) -> npt.NDArray[np.float64]:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)


def _null(column: pa.Array) -> Flags:
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False), dtype=bool)


def _nulled(column: pa.Array, where: Flags) -> pa.Array:
    return pc.if_else(arrays.numbers(where), pa.scalar(None, column.type), column) if where.any() else column
