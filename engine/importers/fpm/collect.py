"""Passes of one capture being collected: on disk by rows, in memory only what decides about whole streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from engine.arrays import numbers, texts
from engine.bundle import Spool
from engine.importers.fpm.values import PASS_SCHEMA, Oddities

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_GEOMETRY = (
    "num_prefill_requests",
    "sum_prefill_tokens",
    "sum_prefill_kv_tokens",
    "num_decode_requests",
    "sum_decode_kv_tokens",
)
_COLUMNS = ("pass_index", "step", "phase", *PASS_SCHEMA.names)
MISSING = np.iinfo(np.int64).min


@dataclass
class Streams:
    """What is known of every pass at once, in the order in which they came. Counts of unknown value are 0."""

    stream: Ints
    """Number of the (worker, rank) that a pass belongs to."""
    names: list[tuple[str | None, int | None]]
    counter: Ints
    """``MISSING`` where the producer stamped none (0 is none)."""
    duration_ns: Floats
    """NaN of a heartbeat and where unknown."""
    geometry: Ints
    """(passes, 5): prefill requests, new tokens, prefill KV, decode requests, decode KV."""


@dataclass
class Passes:
    """A table of passes in the making; ``phase`` and ``step`` are decided when all are known."""

    scratch: Path
    odd: Oddities = field(default_factory=Oddities)
    spool: Spool = field(init=False)
    phase: npt.NDArray[np.object_] | None = None
    step: Ints | None = None

    def __post_init__(self) -> None:
        self.spool = Spool("passes", [c for c in _COLUMNS if c not in ("phase", "step")], self.scratch)
        self._names: dict[tuple[str | None, int | None], int] = {}
        self._parts: list[tuple[Ints, Ints, Floats, Ints]] = []

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.spool.rows

    def take(self, batch: pa.RecordBatch) -> None:
        """Add passes (``PASS_SCHEMA``)."""
        index = numbers(np.arange(self.spool.rows, self.spool.rows + batch.num_rows))
        named = ["pass_index", *batch.schema.names]
        self.spool.extend(pa.RecordBatch.from_arrays([index, *batch.columns], names=named))
        known = {name: _ints(batch.column(name)) for name in (*_GEOMETRY, "counter")}
        duration = np.asarray(batch.column("duration_ns").to_numpy(zero_copy_only=False), np.float64)
        counter = np.where(known["counter"] == 0, MISSING, known["counter"])
        geometry = np.stack([known[name] for name in _GEOMETRY], axis=1)
        self._parts.append((self._streams(batch), counter, duration, geometry))

    def _streams(self, batch: pa.RecordBatch) -> Ints:
        workers = batch.column("worker_id").dictionary_encode()
        worker = workers.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        rank = _ints(batch.column("dp_rank"), MISSING)
        ranks, of_rank = np.unique(rank, return_inverse=True)
        pairs, which = np.unique((worker + 1) * len(ranks) + of_rank, return_inverse=True)
        known = []
        for pair in pairs.tolist():
            code, place = divmod(pair, len(ranks))
            name = workers.dictionary[code - 1].as_py() if code else None
            key = (name, None if ranks[place] == MISSING else int(ranks[place]))
            known.append(self._names.setdefault(key, len(self._names)))
        return np.asarray(known, np.int64)[which]

    def streams(self) -> Streams:
        """All of them. They are handed over, since they take memory that writing needs: ask once."""
        parts, self._parts = self._parts, []
        if not parts:
            return Streams(_none(), [], _none(), _none().astype(np.float64), _none().reshape(0, 5))
        stream, counter, duration, geometry = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Streams(stream, list(self._names), counter, duration, geometry)

    def batches(self, shift_ns: int = 0) -> Iterator[pa.RecordBatch]:
        """The rows in the table's order, with phase and step."""
        for batch in self.spool.batches(shift_ns):
            index = batch.column("pass_index").to_numpy()
            if self.phase is not None:
                batch = batch.append_column("phase", texts(self.phase[index].tolist()))
            if self.step is not None:
                steps = self.step[index]
                batch = batch.append_column("step", numbers(steps, steps != MISSING))
            yield batch


def _ints(column: pa.Array, null: int = 0) -> Ints:
    return np.asarray(column.fill_null(null).to_numpy(zero_copy_only=False), np.int64)


def _none() -> Ints:
    return np.zeros(0, np.int64)
