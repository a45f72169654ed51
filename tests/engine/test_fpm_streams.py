"""Forward pass metrics and KV events in the forms in which people keep them, with answers by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgpack
import pytest

from engine.bundle import Bundle, open_bundle
from engine.errors import GapscopeError
from engine.importers import import_any
from engine.timing import FitSource
from engine.timing.rows import read_rows

S = 1_000_000_000
START = 1_795_985_515 * S
SCHEDULED = (
    "num_prefill_requests",
    "sum_prefill_tokens",
    "var_prefill_length",
    "sum_prefill_kv_tokens",
    "num_decode_requests",
    "sum_decode_kv_tokens",
    "var_decode_kv_tokens",
)
QUEUED = tuple(name for name in SCHEDULED if name != "sum_prefill_kv_tokens")


def record(
    counter: int, wall_s: float, prefill: int = 0, decode: int = 3, rank: int = 0, **more: Any
) -> dict[str, Any]:
    """A pass that prefills one request of ``prefill`` tokens, if any, and decodes ``decode`` of 100 tokens each."""
    counts = (int(prefill > 0), prefill, 0.0, 0, decode, 100 * decode, 0.0)
    return {
        "version": 1,
        "worker_id": "9242928653772033172",
        "dp_rank": rank,
        "counter_id": counter,
        "wall_time": wall_s,
        "scheduled_requests": dict(zip(SCHEDULED, counts, strict=True)),
        "queued_requests": dict(zip(QUEUED, (0, 0, 0.0, 0, 0, 0.0), strict=True)),
        **more,
    }


def wrapped(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As a recorder keeps them: each received a second after the one before."""
    return [
        {"received_at_ns": START + place * S, "wire_counter": one["counter_id"], "metrics": one}
        for place, one in enumerate(records, 1)
    ]


def positional(one: dict[str, Any]) -> list[Any]:
    heads = [one[name] for name in ("version", "worker_id", "dp_rank", "counter_id", "wall_time")]
    return [*heads, list(one["scheduled_requests"].values()), list(one["queued_requests"].values())]


def json_lines(values: list[Any]) -> bytes:
    return "".join(json.dumps(value) + "\n" for value in values).encode()


def packed(values: list[Any]) -> bytes:
    return b"".join(map(msgpack.packb, values))


def imported(tmp_path: Path, data: bytes, **options: Any) -> Bundle:
    file = tmp_path / "capture"
    file.write_bytes(data)
    (run_id,) = import_any(file, tmp_path / "store", **options)
    return open_bundle(tmp_path / "store" / run_id)


def rows(bundle: Bundle, table: str = "passes") -> list[dict[str, Any]]:
    found = bundle.table(table)
    assert found is not None
    return found.to_pylist()


def checks(bundle: Bundle) -> dict[str, tuple[str, str]]:
    return {check.check: (check.verdict, check.detail) for check in bundle.qualification}


THREE = [record(7, 0.02), record(8, 0.05, prefill=512), record(9, 0.03, decode=4)]


def test_a_recorder_gives_times_of_receipt(tmp_path: Path) -> None:
    bundle = imported(tmp_path, json_lines(wrapped(THREE)))
    assert (bundle.kind, bundle.tables) == ("sweep", ("passes",))
    found = rows(bundle)
    # The first pass ended a second after START and took 20 ms: profile start is its start.
    assert bundle.manifest["profile_start_unix_ns"] == START + S - 20_000_000
    assert [row["start_ns"] for row in found] == [0, S - 30_000_000, 2 * S - 10_000_000]
    assert [row["duration_ns"] for row in found] == [20_000_000, 50_000_000, 30_000_000]
    assert [row["counter"] for row in found] == [7, 8, 9]
    assert [row["sum_prefill_tokens"] for row in found] == [0, 512, 0]
    assert [row["num_decode_requests"] for row in found] == [3, 3, 4]
    assert {row["worker_id"] for row in found} == {"9242928653772033172"}
    assert checks(bundle)["counters_unbroken"][0] == "pass"
    assert "Dynamo" in str(bundle.identity.value("telemetry", "fpm_scope"))


@pytest.mark.parametrize(
    "data",
    [
        json_lines(wrapped(THREE)),
        gzip.compress(json_lines(wrapped(THREE))),
        packed(wrapped(THREE)),
        b"".join(len(one).to_bytes(4, "big") + one for one in map(msgpack.packb, wrapped(THREE))),
    ],
    ids=["json", "gzip", "msgpack", "framed"],
)
def test_every_encoding_gives_the_same_passes(tmp_path: Path, data: bytes) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    assert rows(imported(one, data)) == rows(imported(other, json_lines(wrapped(THREE))))


@pytest.mark.parametrize("values", [THREE, [positional(one) for one in THREE]], ids=["maps", "by position"])
def test_bare_records_have_durations_and_no_times(tmp_path: Path, values: list[Any]) -> None:
    found = rows(imported(tmp_path, packed(values)))
    assert [row["duration_ns"] for row in found] == [20_000_000, 50_000_000, 30_000_000]
    assert all(row["start_ns"] is None for row in found)
    assert sorted(row["sum_decode_kv_tokens"] for row in found) == [300, 300, 400]


def test_broken_counters_are_counted(tmp_path: Path) -> None:
    """21, 22, 25: two are missing; 25 again; then 3, a reset."""
    values = wrapped([record(n, 0.02) for n in (21, 22, 25, 25, 3)])
    verdict, detail = checks(imported(tmp_path, json_lines(values)))["counters_unbroken"]
    assert verdict == "fail"
    assert "2 missing in 1 gap" in detail
    assert "1 repeated" in detail
    assert "1 reset" in detail


def test_heartbeats_and_impossible_values(tmp_path: Path) -> None:
    idle = record(2, 0.0, decode=0)
    rootless = record(3, 0.02)
    rootless["scheduled_requests"]["sum_decode_kv_tokens"] = 0
    endless = record(4, 6_000.0)
    bundle = imported(tmp_path, json_lines(wrapped([record(1, 0.02), idle, rootless, endless])))
    found = {row["counter"]: row for row in rows(bundle)}
    assert found[2]["duration_ns"] is None
    assert found[3]["sum_decode_kv_tokens"] is None
    assert found[4]["duration_ns"] is None
    verdict, detail = checks(bundle)["values_possible"]
    assert verdict == "fail"
    assert "1 heartbeat" in detail
    assert "decode requests without KV" in detail


def test_a_negative_count_is_a_bad_row(tmp_path: Path) -> None:
    bad = record(2, 0.02)
    bad["scheduled_requests"]["num_decode_requests"] = -1
    data = json_lines(wrapped([record(1, 0.02), bad]))
    with pytest.raises(GapscopeError, match="capture line 2"):
        imported(tmp_path, data)
    bundle = imported(tmp_path, data, skip_bad_rows=True)
    assert bundle.rows("passes") == 1
    assert checks(bundle)["rows_used"][0] == "fail"


def test_cold_passes_are_of_phase_primer_and_no_fit_uses_them(tmp_path: Path) -> None:
    """The first prefill of 128 tokens took 3 s, twelve later ones of 128 to 2,048 tokens took 20 to 200 ms."""
    later = [record(n, 0.02 + 0.015 * n, prefill=128 * (1 + n % 16), decode=0) for n in range(2, 14)]
    bundle = imported(tmp_path, json_lines(wrapped([record(1, 3.0, prefill=128, decode=0), *later])))
    assert [row["phase"] for row in rows(bundle)] == ["primer", *["profile"] * 12]
    assert checks(bundle)["passes_warm"][0] == "fail"
    found, told = read_rows([FitSource(bundle)])
    assert (len(found), told[0]["left_out"]["primer"]) == (12, 1)
    found, told = read_rows([FitSource(bundle, ("primer", "profile"))])
    assert (len(found), told[0]["left_out"].get("primer")) == (13, None)


def test_ranks_that_wait_for_each_other_share_steps(tmp_path: Path) -> None:
    together = [record(n, 0.02 + n / 1000, rank=r) for n in range(1, 6) for r in (0, 1)]
    bundle = imported(tmp_path, json_lines(wrapped(together)))
    assert sorted(row["step"] for row in rows(bundle)) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    apart = tmp_path / "apart"
    apart.mkdir()
    alone = [record(n, 0.02 * (1 + r), rank=r) for n in range(1, 6) for r in (0, 1)]
    assert {row["step"] for row in rows(imported(apart, json_lines(wrapped(alone))))} == {None}


def test_a_reduced_capture_with_its_configuration(tmp_path: Path) -> None:
    head = (
        "phase,workload_segment,counter_id,worker_id,dp_rank,sum_prefill_tokens,num_prefill_requests,"
        "sum_prefill_kv_tokens,var_prefill_length,num_decode_requests,sum_decode_kv_tokens,var_decode_kv_tokens,"
        "queued_prefill_requests,queued_prefill_tokens,queued_var_prefill_length,queued_decode_requests,"
        "queued_decode_kv_tokens,queued_var_decode_kv_tokens,latency_ms\n"
    )
    lines = (
        "context,sweep,14,92,0,128,1,0,0,0,0,0,0,0,0,0,0,0,17.25\ndecode,real,15,92,0,0,0,0,0,4,400,1.5,0,0,0,0,0,0,8\n"
    )
    folder = tmp_path / "gpu"
    folder.mkdir()
    (folder / "fpm_metrics_detail.csv").write_text(head + lines)
    (folder / "fpm_metrics.csv").write_text("num_context_tokens,num_decode_tokens,latency_ms\n128,0,17.25\n")
    settings = {"artifact_kind": "fpm", "effective_config": {"vllm_version": "0.20.1", "cache_config.block_size": 16}}
    (folder / "vllm_metadata.json").write_text(json.dumps(settings))
    (run_id,) = import_any(folder, tmp_path / "store")
    bundle = open_bundle(tmp_path / "store" / run_id)
    found = {row["counter"]: row for row in rows(bundle)}
    assert (found[14]["segment"], found[15]["segment"]) == ("sweep", "real")
    assert (found[14]["duration_ns"], found[15]["duration_ns"]) == (17_250_000, 8_000_000)
    assert found[15]["var_decode_kv_tokens"] == 1.5
    assert bundle.identity.value("source", "version") == "0.20.1"
    assert bundle.identity.value("capacity", "block_size") == 16


def test_kv_events_of_vllm(tmp_path: Path) -> None:
    """A batch by position: a stored pair under a parent, a removed block, a cleared cache."""
    batch = [
        1_795_985_515.5,
        [
            ["BlockStored", [2**63 + 1, b"\x01" * 32], 5, [1, 2], 16, None, "GPU"],
            ["BlockRemoved", [-5], "CPU"],
            ["AllBlocksCleared"],
        ],
        1,
    ]
    found = rows(imported(tmp_path, packed([batch])), "kv_events")
    assert [row["kind"] for row in found] == ["store", "evict", "clear"]
    assert found[0]["block_hashes"] == [2**63 + 1, 0x0101010101010101]
    assert found[0]["parent_hash"] == 5
    assert found[1]["block_hashes"] == [2**64 - 5]
    assert [row["tier"] for row in found] == ["device", "host", None]
    assert [row["num_blocks"] for row in found] == [2, 1, None]
    assert {row["dp_rank"] for row in found} == {1}


def test_kv_events_of_dynamo(tmp_path: Path) -> None:
    values = [
        {"event_id": 1, "dp_rank": 2, "data": {"stored": {"parent_hash": None, "blocks": [{"block_hash": 2**64 - 1}]}}},
        {"event_id": 2, "dp_rank": 2, "data": {"removed": {"block_hashes": [5, 6]}}},
        {"event_id": 3, "dp_rank": 2, "data": "cleared"},
    ]
    bundle = imported(tmp_path, json_lines(values))
    found = rows(bundle, "kv_events")
    assert [(row["kind"], row["block_hashes"]) for row in found] == [
        ("store", [2**64 - 1]),
        ("evict", [5, 6]),
        ("clear", None),
    ]
    assert checks(bundle)["events_timed"][0] == "unknown"
