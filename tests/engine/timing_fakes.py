"""Passes and bundles made up for the timing tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from engine.identity import Identity

PASS_COLUMNS = (
    "num_prefill_requests",
    "sum_prefill_tokens",
    "sum_prefill_kv_tokens",
    "num_decode_requests",
    "sum_decode_kv_tokens",
)


@dataclass
class FakeBundle:
    """What a fit reads of a bundle."""

    run_id: str
    kind: str
    tables_: dict[str, pa.Table]
    identity: Identity = field(default_factory=Identity)

    def __post_init__(self) -> None:
        self.manifest = {"files": {f"{n}.parquet": {"content": f"{self.run_id}/{n}"} for n in self.tables_}}

    def table(self, name: str, columns: list[str] | None = None) -> pa.Table | None:
        table = self.tables_.get(name)
        if table is None or columns is None:
            return table
        missing = [c for c in columns if c not in table.column_names]
        for column in missing:
            table = table.append_column(column, pa.nulls(table.num_rows, pa.int64()))
        return table.select(columns)


def truth_ns(prompts: int, tokens: int, kv: int, decodes: int, decode_kv: int) -> float:
    """The formula behind the made-up passes, in nanoseconds; a mixed pass costs the sum of its parts."""
    total = 0.0
    if prompts:
        total += 4e6 + 150e3 * tokens + 200.0 * tokens * (2 * kv + tokens) / (2 * prompts) + 1e6 * prompts
    if decodes:
        total += 9e6 + 800e3 * decodes + 500.0 * decode_kv
    return total


def geometries(seed: int, n: int) -> list[tuple[int, int, int, int, int]]:
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        prompts = int(rng.integers(1, 4)) if i % 3 != 0 else 0
        decodes = int(rng.integers(1, 9)) if i % 3 != 1 else 0
        tokens = int(rng.integers(16, 513)) if prompts else 0
        kv = int(prompts * rng.integers(0, 4000))
        rows.append((prompts, tokens, kv, decodes, int(decodes * rng.integers(200, 4000))))
    return rows


def pass_table(
    rows: list[tuple[int, int, int, int, int]],
    durations: list[float | None],
    phase: str | list[str] = "profile",
    between_ns: int = 250_000,
    **more: Any,
) -> pa.Table:
    columns: dict[str, Any] = dict(zip(PASS_COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    whole = [None if d is None else round(d) for d in durations]
    starts = np.concatenate([[0], np.cumsum([(d or 0) + between_ns for d in whole])[:-1]]).tolist()
    columns |= {
        "phase": [phase] * len(rows) if isinstance(phase, str) else phase,
        "start_ns": starts,
        "end_ns": [s + (d or 0) for s, d in zip(starts, whole, strict=True)],
        "duration_ns": pa.array(whole, pa.int64()),
        "period_ns": pa.array([None if d is None else d + between_ns for d in whole], pa.int64()),
        **more,
    }
    return pa.table(columns)


def bundle(name: str, kind: str = "sweep", seed: int = 1, n: int = 240, scale: float = 1.0, **more: Any) -> FakeBundle:
    """Passes of the formula, all ``scale`` times as long."""
    rows = geometries(seed, n)
    return FakeBundle(name, kind, {"passes": pass_table(rows, [scale * truth_ns(*r) for r in rows], **more)})
