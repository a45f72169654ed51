"""Runs small enough to count by hand, and the samples of the project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from dashboard.catalogue import Catalogue
from engine.bundle import BundleWriter, Check, Phase, ledger_of
from engine.bundle.schema import TABLES
from engine.identity import Identity

SAMPLES = Path(__file__).parents[2] / "sample_runs"
MS = 1_000_000
S = 1_000_000_000


def sample_id(name: str) -> str:
    """The run id of a sample by its name."""
    return Catalogue([SAMPLES]).find(name).run_id


def table(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    """The rows with the columns that any of them names, sorted as the schema wants."""
    spec = TABLES[name]
    used = [field for field in spec.schema if any(field.name in row for row in rows)]
    plain = pa.schema([(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type) for f in used])
    keys = [key for key in spec.sorted_by if key in plain.names]
    return pa.Table.from_pylist(rows, plain).sort_by([(key, "ascending") for key in keys])


def request(name: str, **values: Any) -> dict[str, Any]:
    """A successful request dispatched at 0: TTFT 100 ms, 5 tokens 20 ms apart, closed 1 ms later."""
    at = values.pop("at", 0)
    row = {
        "request_id": name,
        "source_trace_id": "s",
        "conversation_id": name,
        "turn_index": 0,
        "lane": 0,
        "agent_depth": 0,
        "phase": "profile",
        "status": "ok",
        "scheduled_ns": at - 2 * MS,
        "dispatched_ns": at,
        "received_ns": at + 5 * MS,
        "first_admit_ns": at + 10 * MS,
        "first_visible_ns": at + 100 * MS,
        "last_visible_ns": at + 180 * MS,
        "end_ns": at + 181 * MS,
        "input_tokens": 65,
        "output_tokens": 5,
        "cached_tokens": 32,
        "preemptions": 0,
    }
    return row | values


def a_pass(index: int, **values: Any) -> dict[str, Any]:
    """A decode pass of one request, 10 ms long, one every 20 ms."""
    start = index * 20 * MS
    row = {
        "pass_index": index,
        "phase": "profile",
        "start_ns": start,
        "end_ns": start + 10 * MS,
        "duration_ns": 10 * MS,
        "num_prefill_requests": 0,
        "sum_prefill_tokens": 0,
        "sum_prefill_kv_tokens": 0,
        "num_decode_requests": 1,
        "sum_decode_kv_tokens": 100,
        "num_running": 1,
        "num_waiting": 0,
    }
    return row | values


def identity(**changes: Any) -> Identity:
    """A closed loop of 2 lanes on blocks of 32 tokens; ``group__field=value`` changes it."""
    record = Identity()
    facts: dict[str, Any] = {
        "source__engine": "vllm",
        "source__version": "1.0",
        "model__name": "toy",
        "hardware__part": "CPU",
        "client__loop": "closed",
        "client__lanes": 2,
        "capacity__block_size": 32,
    }
    for name, value in (facts | changes).items():
        group, field = name.split("__")
        record.set(group, field, value, "by hand")
    return record


def write(
    store: Path,
    slug: str,
    requests: list[dict[str, Any]],
    kind: str = "measured",
    record: Identity | None = None,
    never_issued: int | None = None,
    lineage: dict[str, Any] | None = None,
    qualification: list[Check] | None = None,
    profile_s: int = 10,
    **tables: list[dict[str, Any]],
) -> str:
    """Seal a run with warm-up from -2 s and a profile of ``profile_s`` seconds; its id."""
    rows = table("requests", requests)
    with BundleWriter(store, kind, slug, slug, record or identity()) as writer:
        writer.write_table("requests", rows)
        for name, members in tables.items():
            writer.write_table(name, table(name, members))
        return writer.seal(
            phases=[
                Phase("warmup", -2 * S, 0),
                Phase("profile", 0, profile_s * S),
                Phase("grace", profile_s * S, (profile_s + 1) * S),
            ],
            ledger=ledger_of(rows, never_issued=never_issued),
            lineage=lineage or {},
            qualification=qualification or [],
        )
