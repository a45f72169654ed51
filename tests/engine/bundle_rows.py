"""Small runs for the tests of the bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from engine.bundle import BundleWriter, Phase
from engine.bundle.schema import TABLES
from engine.identity import Identity

PHASES = [Phase("warmup", -10, 0), Phase("profile", 0, 100)]


def request(index: int, **values: Any) -> dict[str, Any]:
    return {
        "request_id": f"r{index}",
        "phase": "profile",
        "status": "ok",
        "dispatched_ns": index * 10,
        "input_tokens": 100,
        "output_tokens": 5,
        **values,
    }


def table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    """The rows with just the columns that they name, in the schema's types."""
    schema = TABLES[name].schema
    used = [field for field in schema if any(field.name in row for row in rows)]
    return pa.Table.from_pylist(rows, pa.schema(used))


def passes(count: int) -> pa.Table:
    rows = [
        {
            "pass_index": k,
            "phase": "profile",
            "start_ns": 10 * k,
            "end_ns": 10 * k + 9,
            "duration_ns": 9,
            "num_prefill_requests": k % 2,
            "num_decode_requests": k % 5,
            "members": [{"request_id": f"r{k}", "computed_before": k, "scheduled_tokens": 1}],
        }
        for k in range(count)
    ]
    return table("passes", rows)


def identity() -> Identity:
    record = Identity()
    record.set("model", "name", "toy", "config.json")
    record.set("scheduler", "max_num_seqs", 16, "command line")
    return record


def write(store: Path, count: int = 3, slug: str = "small", title: str = "Small", **seal: Any) -> str:
    with BundleWriter(store, "measured", slug, title, identity()) as writer:
        writer.write_table("requests", table("requests", [request(k) for k in range(count)]))
        writer.write_table("passes", passes(count))
        return writer.seal(phases=PHASES, **seal)
