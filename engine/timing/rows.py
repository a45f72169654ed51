"""Measured passes as a fit sees them: geometry, duration, where each row came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engine.errors import GapscopeError
from engine.identity import FIELDS, Identity, diff

if TYPE_CHECKING:
    from engine.bundle import Bundle

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

PRIMER = "primer"
"""Phase of passes that were cold (compilation, capture of graphs, first touch of memory): used only where named."""
CLASSES = ("prefill_only", "decode_only", "mixed")
PREFILL_ONLY, DECODE_ONLY, MIXED = range(3)

# Beside the fields that define the regime (engine.identity), what must be equal before passes of two recordings may
# be pooled. Capacity, client and trace are left out on purpose: they change which passes happen, not how long a
# pass of given geometry takes.
REGIME_GROUPS = ("source", "model", "hardware", "topology", "speculation", "kernels")
ALSO_EQUAL = (
    ("model", "config_digest"),
    ("hardware", "count"),
    *(("topology", name) for name in FIELDS["topology"]),
    ("capacity", "block_size"),
    ("scheduler", "async_scheduling"),
    ("telemetry", "fpm_scope"),
)


LEFT_OVER = "what passes left of the host time, as batches were formed during them"
"""What the lineage of such a run says of its time between passes."""


@dataclass(frozen=True)
class FitSource:
    """Passes to fit on: those of ``phases`` of one run or sweep, or all but its primer (None)."""

    bundle: Bundle
    phases: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """``run`` or ``run:phase,phase``, as the command line writes it."""
        return self.bundle.run_id + (":" + ",".join(self.phases) if self.phases else "")


@dataclass(frozen=True, slots=True)
class PassRows:
    """n measured passes. Times in nanoseconds; NaN is unknown. ``source`` numbers the fit sources."""

    prefill_requests: Ints
    new_tokens: Ints
    prefill_kv_tokens: Ints
    decode_requests: Ints
    decode_kv_tokens: Ints
    duration_ns: Floats
    contention_ns: Floats
    between_ns: Floats
    source: Ints

    def __len__(self) -> int:
        return len(self.duration_ns)

    def take(self, which: npt.NDArray[Any]) -> PassRows:
        """The rows that a mask or an index array selects."""
        return PassRows(*(getattr(self, f.name)[which] for f in fields(self)))

    @property
    def kind(self) -> Ints:
        """Index into ``CLASSES``."""
        mixed_or_prefill = np.where(self.decode_requests > 0, MIXED, PREFILL_ONLY)
        return np.where(self.prefill_requests == 0, DECODE_ONLY, mixed_or_prefill)

    def geometry(self) -> Ints:
        """n x 5: prefill requests, new tokens, prefill KV, decode requests, decode KV."""
        return np.stack([getattr(self, f.name) for f in fields(self)[:5]], axis=1)


def concatenate(parts: Sequence[PassRows]) -> PassRows:
    """All rows, in order."""
    return PassRows(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(PassRows)))


def read_rows(sources: Sequence[FitSource]) -> tuple[PassRows, list[dict[str, Any]]]:
    """The usable passes of ``sources`` and, per source, its lineage (JSON-ready, with what was left out and why).

    Idle heartbeats and passes whose duration is unknown are counted, not fitted.

    Raises:
        GapscopeError: no source, the same passes named twice, a replay, a run without passes, a phase without passes.
    """
    if not sources:
        raise GapscopeError("Nothing to fit: name at least one sweep or run, for example `--fit RUN:warmup`.")
    parts: list[PassRows] = []
    lineage: list[dict[str, Any]] = []
    for number, source in enumerate(sources):
        rows, told = _read(source, number)
        for earlier in lineage:
            if earlier["run_id"] == told["run_id"] and _overlap(earlier["phases"], told["phases"]):
                raise GapscopeError(
                    f"Fit source {source.name} is named twice: its passes would count double; name each phase once."
                )
        if source.bundle.identity.value("scheduler", "async_scheduling") is True:
            told["between"] = LEFT_OVER
        parts.append(rows)
        lineage.append(told)
    return concatenate(parts), lineage


def _overlap(left: list[str] | None, right: list[str] | None) -> bool:
    return left is None or right is None or bool(set(left) & set(right))


_COLUMNS = (
    "num_prefill_requests",
    "sum_prefill_tokens",
    "sum_prefill_kv_tokens",
    "num_decode_requests",
    "sum_decode_kv_tokens",
    "duration_ns",
    "contention_ns",
    "period_ns",
)


def _read(source: FitSource, number: int) -> tuple[PassRows, dict[str, Any]]:
    bundle = source.bundle
    if bundle.kind == "replay":
        raise GapscopeError(
            f"Run {bundle.run_id} is a replay: its passes are a model's, and its sources would be forgotten. "
            "Name recorded passes, of a run or a sweep."
        )
    table = bundle.table("passes", columns=["phase", "start_ns", "end_ns", *_COLUMNS])
    if table is None or table.num_rows == 0:
        raise GapscopeError(
            f"Run {bundle.run_id} has no passes, so nothing can be fitted on it: "
            "name a run or sweep with recorded passes."
        )
    phases = np.asarray(table["phase"].to_pylist(), dtype=object)
    primer = 0
    if source.phases is not None:
        for phase in source.phases:
            if not (phases == phase).any():
                there = ", ".join(sorted({str(p) for p in phases}))
                raise GapscopeError(
                    f"Run {bundle.run_id} has no pass in phase {phase!r}: its passes are in {there}; name one of those."
                )
        table = table.filter(np.isin(phases, np.asarray(source.phases, dtype=object)))
    else:
        primer = int((phases == PRIMER).sum())
        table = table.filter(phases != PRIMER) if primer else table
    column = {name: _floats(table[name]) for name in _COLUMNS}
    counts = np.stack([column[name] for name in _COLUMNS[:5]])
    duration = column["duration_ns"]
    requests = np.nan_to_num(counts[0]) + np.nan_to_num(counts[3])
    idle = requests == 0
    unknown = ~idle & ~(np.isfinite(duration) & (duration > 0))
    counts[1:3, column["num_prefill_requests"] == 0] = 0
    counts[4, column["num_decode_requests"] == 0] = 0
    partial = ~idle & ~unknown & ~np.isfinite(counts).all(axis=0)
    usable = ~(idle | unknown | partial)
    if not usable.any():
        raise GapscopeError(
            f"Fit source {source.name}: none of its {table.num_rows} passes has a batch and a positive duration; "
            "name a phase in which passes were measured."
        )
    prompts, tokens, kv, decodes, decode_kv = (c[usable].astype(np.int64) for c in counts)
    rows = PassRows(
        prompts,
        tokens,
        kv,
        decodes,
        decode_kv,
        duration_ns=duration[usable],
        contention_ns=column["contention_ns"][usable],
        between_ns=_between(table, column)[usable],
        source=np.full(int(usable.sum()), number, dtype=np.int64),
    )
    told: dict[str, Any] = {
        "run_id": bundle.run_id,
        "kind": bundle.kind,
        "phases": list(source.phases) if source.phases is not None else None,
        "tables": {"passes": bundle.manifest["files"]["passes.parquet"]["content"]},
        "passes": len(rows),
        "passes_by_class": {name: int((rows.kind == c).sum()) for c, name in enumerate(CLASSES)},
        "left_out": {
            "idle": int(idle.sum()),
            "duration_unknown": int(unknown.sum()),
            "geometry_unknown": int(partial.sum()),
        },
    }
    if primer:
        told["left_out"]["primer"] = primer
    return rows, told


def _between(table: Any, column: dict[str, Floats]) -> Floats:
    """Host time before each pass: its period less its duration.

    Where no period at all was recorded, since the pass before, if this one decodes: then the engine was not idle.
    """
    if np.isfinite(column["period_ns"]).any() or not len(table):
        return column["period_ns"] - column["duration_ns"]
    since = np.append(np.nan, _floats(table["start_ns"])[1:] - _floats(table["end_ns"])[:-1])
    return np.where((column["num_decode_requests"] > 0) & (since >= 0), since, np.nan)


def _floats(column: Any) -> Floats:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)


def check_same_regime(sources: Sequence[FitSource], force: bool) -> list[str]:
    """Fields in which the sources' deployments are known to differ (unknown on either side does not count).

    Raises:
        GapscopeError: there is one and ``force`` is False.
    """
    first, found = sources[0], []
    for other in sources[1:]:
        for group, name, left, right in _differences(first.bundle.identity, other.bundle.identity):
            said = f"{group}.{name} is {left!r} in {first.bundle.run_id} and {right!r} in {other.bundle.run_id}"
            if not force:
                raise GapscopeError(
                    f"Fit sources describe different deployments: {said}; fit them apart, or force it knowingly."
                )
            found.append(said)
    return found


def _differences(left: Identity, right: Identity) -> list[tuple[str, str, Any, Any]]:
    return [
        (d.group, d.field, left.value(d.group, d.field), right.value(d.group, d.field))
        for d in diff(left, right)
        if d.state == "differs" and ((d.regime and d.group in REGIME_GROUPS) or (d.group, d.field) in ALSO_EQUAL)
    ]
