"""Made-up runs as load generators leave them: durations without times, passes without times, figures without rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import synthetic

from engine.bundle import BundleWriter, Check, Phase
from engine.bundle.schema import TABLES
from engine.definitions import END_CHUNK, ITL_CHUNKS, PERCENTILES_LINEAR, ROLE_CHUNK, TOKENS_REQUESTED, TPOT_OURS
from engine.identity import Identity

MS = 1_000_000
S = 1000 * MS

REPORTED: tuple[dict[str, Any], ...] = (
    {
        "scope": "run",
        "name": "mean_ttft_ms",
        "unit": "ms",
        "statistic": "mean",
        "value": 61.0,
        "metric": "ttft",
        "definition": "first chunk of any kind, the role chunk included; zero-output requests count as 0",
        "source": "result.json",
    },
    {
        "scope": "run",
        "name": "request_throughput",
        "unit": "1/s",
        "statistic": "total",
        "value": 1.25,
        "metric": "request_rate",
        "definition": "completed requests over the whole benchmark call",
        "source": "result.json",
    },
    {"scope": "run", "name": "max_concurrent_requests", "unit": "requests", "statistic": "max", "value": 5.0},
    {"scope": "server", "name": "kv_usage", "labels": "engine=0", "unit": "share", "statistic": "mean", "value": 0.4},
)


def rows_of(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    spec = TABLES[name]
    used = [field for field in spec.schema if field.name in spec.required or any(field.name in row for row in rows)]
    plain = pa.schema([(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type) for f in used])
    keys = [key for key in spec.sorted_by if key in plain.names]
    table = pa.Table.from_pylist([{f.name: row.get(f.name) for f in used} for row in rows], plain)
    return table.sort_by([(key, "ascending") for key in keys])


def identity(**definitions: str) -> Identity:
    record = synthetic.identity()
    told = {
        "first_token": ROLE_CHUNK,
        "end_of_latency": END_CHUNK,
        "token_source": TOKENS_REQUESTED,
        "tpot": TPOT_OURS,
        "itl": ITL_CHUNKS,
        "percentiles": PERCENTILES_LINEAR,
        "throughput_denominator": "the whole benchmark call",
    }
    for name, words in (told | definitions).items():
        record.set("definitions", name, words, "made up")
    return record


def request(name: str, **values: Any) -> dict[str, Any]:
    """TTFT 60 ms, 5 tokens 20 ms apart, closed 5 ms later; durations only."""
    row = {
        "request_id": name,
        "phase": "profile",
        "status": "ok",
        "tool_status": "success",
        "first_visible_after_ns": 60 * MS,
        "last_visible_after_ns": 140 * MS,
        "end_after_ns": 145 * MS,
        "input_tokens": 100,
        "output_tokens": 5,
    }
    return row | values


def failure(name: str, **values: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(("first_visible_after_ns", "last_visible_after_ns", "end_after_ns", "output_tokens"))
    return request(name, status="error", tool_status="error", error_type="500", **nothing | values)


def write(store: Path, slug: str, kind: str = "measured", record: Identity | None = None, **tables: Any) -> str:
    """Seal a run of these tables, imported from ``benchtool``; its id."""
    with BundleWriter(store, kind, slug, slug, record or identity()) as writer:
        for name, members in tables.items():
            writer.write_table(name, rows_of(name, list(members)))
        return writer.seal(
            phases=[Phase("profile", 0, 10 * S)] if "requests" in tables else [],
            lineage={
                "format": "benchtool result",
                "tool": "benchtool",
                "tool_version": "1.2",
                "source_files": {"result.json": "ab" * 32},
                "rows_left_out": 1,
                "not_recorded": ["The tool keeps no times of requests."],
            },
            qualification=[
                Check("rows_used", "fail", "1 row was left out: result.json line 3 is no object"),
                Check("one_clock", "unknown", "No request has times."),
                Check("no_negative_times", "pass", "None of 8 requests has a negative duration."),
            ],
        )


def durations(store: Path) -> str:
    """Durations alone, chunks whose tokens nobody counted, one answer without content."""
    requests = [request(f"r{i}", first_visible_after_ns=(50 + 5 * i) * MS) for i in range(6)]
    requests.append(request("empty", first_visible_after_ns=None, last_visible_after_ns=None, output_tokens=0))
    requests[-1]["flags"] = "zero output"
    chunks = [
        {"request_id": f"r{i}", "ordinal": j, "after_ns": (60 + 20 * j) * MS, "visible": True}
        for i in range(6)
        for j in range(5)
    ]
    return write(store, "durations", requests=[*requests, failure("bad")], chunks=chunks, reported=REPORTED)


def passes_without_times(store: Path) -> str:
    passes = [
        {
            "pass_index": i,
            "phase": "profile",
            "duration_ns": (10 + i) * MS,
            "num_prefill_requests": i % 2,
            "sum_prefill_tokens": 100 * (i % 2),
            "sum_prefill_kv_tokens": 0,
            "num_decode_requests": 3,
            "sum_decode_kv_tokens": 300 + i,
            "worker_id": "w",
            "dp_rank": i % 2,
            "step": i // 2,
        }
        for i in range(8)
    ]
    return write(store, "untimed", requests=[request("r0"), request("r1")], passes=passes)


def summary(store: Path) -> str:
    return write(store, "summary", "imported_summary", reported=REPORTED)


def all_failed(store: Path) -> str:
    return write(store, "failed", requests=[failure(f"r{i}") for i in range(4)])


def none_in_profile(store: Path) -> str:
    rows = [request("w0", phase="warmup"), request("w1", phase="warmup"), failure("r0")]
    return write(store, "warm", requests=rows)


RUNS = {
    "durations": durations,
    "untimed": passes_without_times,
    "summary": summary,
    "failed": all_failed,
    "warm": none_in_profile,
}
