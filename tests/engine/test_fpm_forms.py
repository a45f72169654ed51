"""Forward pass metrics in every encoding, and real captures of GPUs counted apart from the importer."""

from __future__ import annotations

import csv
import gzip
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from public_files import PUBLIC

from engine.bundle import Bundle, open_bundle
from engine.importers import import_any
from engine.importers.fpm.records import QUEUED, SCHEDULED, Told, read_records
from engine.importers.fpm.values import Oddities, to_passes
from engine.importers.kv_events.events import block_hash
from engine.intake import BadRows, InputFile

GPU = PUBLIC / "fpm"
COUNTS = st.integers(0, 2**40)
VARIANCES = st.floats(0, 1e12, allow_nan=False)
PLACES = ("version", "worker_id", "dp_rank", "counter_id", "wall_time", "scheduled_requests", "queued_requests")


def part(fields: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({name: VARIANCES if "var_" in name else COUNTS for name in fields})


RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "version": st.just(1),
            "worker_id": st.integers(0, 2**64 - 1).map(str),
            "dp_rank": st.integers(0, 7),
            "counter_id": st.integers(0, 2**63 - 1),
            "wall_time": st.floats(0, 700, allow_nan=False),
            "scheduled_requests": part(SCHEDULED),
            "queued_requests": part(QUEUED),
        }
    ),
    min_size=1,
    max_size=6,
)


def by_place(record: dict[str, Any]) -> list[Any]:
    scheduled, queued = record["scheduled_requests"], record["queued_requests"]
    whole = {
        **record,
        "scheduled_requests": [scheduled[name] for name in SCHEDULED],
        "queued_requests": [queued[name] for name in QUEUED],
    }
    return [whole[name] for name in PLACES]


def encodings(records: list[dict[str, Any]]) -> dict[str, bytes]:
    lines = [json.dumps(record).encode() for record in records]
    maps = [msgpack.packb(record) for record in records]
    places = [msgpack.packb(by_place(record)) for record in records]
    return {
        "lines": b"\n".join(lines),
        "lines by place": b"\n".join(json.dumps(by_place(record)).encode() for record in records),
        "mark, CRLF": b"\xef\xbb\xbf" + b"\r\n".join(lines) + b"\r\n",
        "gzip": gzip.compress(b"\n".join(lines)),
        "maps": b"".join(maps),
        "by place": b"".join(places),
        "big": b"".join(len(m).to_bytes(4, "big") + m for m in maps),
        "little": b"".join(len(m).to_bytes(4, "little") + m for m in places),
        "bytes in msgpack": b"".join(msgpack.packb(m) for m in maps),
    }


def passes_of(data: bytes) -> tuple[list[dict[str, Any]], Oddities]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "capture"
        path.write_bytes(data)
        bad, odd = BadRows(), Oddities()
        blocks = read_records(InputFile("capture", path), bad, Told())
        return [row for n, batch in blocks for row in to_passes(n, batch, "capture", bad, odd).to_pylist()], odd


@given(RECORDS)
@settings(max_examples=30, deadline=None)
def test_every_encoding_of_any_records_gives_the_same_passes(records: list[dict[str, Any]]) -> None:
    found = {name: passes_of(data)[0] for name, data in encodings(records).items()}
    for name, rows in found.items():
        assert rows == found["lines"], name
    assert [row["counter"] for row in found["lines"]] == [record["counter_id"] for record in records]
    for row, record in zip(found["lines"], records, strict=True):
        wall = record["wall_time"]
        assert row["duration_ns"] == (round(wall * 1e9) if 0 < wall <= 600 else None)
        assert row["sum_prefill_kv_tokens"] == record["scheduled_requests"]["sum_prefill_kv_tokens"]


def one(**scheduled: Any) -> dict[str, Any]:
    counts = dict.fromkeys(SCHEDULED, 0) | scheduled
    return {"worker_id": "w", "dp_rank": 0, "wall_time": 0.02, "scheduled_requests": counts}


def test_a_field_that_is_missing_is_unknown_and_not_zero() -> None:
    record = one(num_decode_requests=4)
    del record["scheduled_requests"]["sum_decode_kv_tokens"]
    (row,), odd = passes_of(json.dumps(record).encode())
    assert row["sum_decode_kv_tokens"] is None
    assert row["queued_num_prefill_requests"] is None
    assert row["counter"] is None
    assert not odd.counts
    (row,), odd = passes_of(json.dumps(one(num_decode_requests=4)).encode())
    assert row["sum_decode_kv_tokens"] is None
    assert odd.counts == {"decode requests without KV": 1}


def test_tokens_of_nobody_belong_to_an_unknown_number_of_requests() -> None:
    (row,), odd = passes_of(
        json.dumps(one(sum_prefill_tokens=128, num_decode_requests=1, sum_decode_kv_tokens=9)).encode()
    )
    assert (row["num_prefill_requests"], row["sum_prefill_tokens"]) == (None, 128)
    assert odd.counts == {"prefill tokens without a prefill request": 1}


def test_numbers_that_are_none_are_unknown() -> None:
    text = json.dumps(one(num_decode_requests=2, sum_decode_kv_tokens=9)).replace("0.02", "Infinity")
    (row,), odd = passes_of(text.replace('"var_decode_kv_tokens": 0', '"var_decode_kv_tokens": NaN').encode())
    assert (row["duration_ns"], row["var_decode_kv_tokens"]) == (None, None)
    assert sum(odd.counts.values()) == 2


def test_a_hash_of_bytes_is_the_number_that_vllm_makes_of_it() -> None:
    """vLLM publishes its hash of 32 bytes as such, or as the lower 64 bits of the number that they are."""
    data = bytes(range(32))
    assert block_hash(data) == int.from_bytes(data, "big") % 2**64 == 0x18191A1B1C1D1E1F
    assert block_hash(data.hex()) == block_hash(data)
    assert block_hash(b"\x05") == 5
    assert (block_hash(-1), block_hash(2**64 - 1), block_hash(2**63)) == (2**64 - 1, 2**64 - 1, 2**63)


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    if not GPU.is_dir():
        pytest.skip("the captures are not here")
    store = tmp_path_factory.mktemp("store")
    bundles = [open_bundle(store / run_id) for run_id in import_any(GPU, store)]
    return {bundle.run_id.partition("-")[0].partition("_")[0]: bundle for bundle in bundles}


def said(bundle: Bundle, check: str) -> tuple[str, str]:
    return next((c.verdict, c.detail) for c in bundle.qualification if c.check == check)


@pytest.mark.parametrize("folder", ["qwen3-32b_vllm0.20.1_tp1", "dsv4-flash_tp1_ep4_dp4_recipe"])
def test_real_captures_are_whole(gpu: dict[str, Bundle], folder: str) -> None:
    with (GPU / folder / "fpm_metrics_detail.csv").open(newline="") as file:
        theirs = list(csv.DictReader(file))
    bundle = gpu[folder.partition("-")[0]]
    table = bundle.table("passes")
    assert table is not None
    assert table.num_rows == len(theirs)
    ours = {row["counter"]: row for row in table.to_pylist()}
    counters = np.array(sorted(int(row["counter_id"]) for row in theirs))
    missing = counters[-1] - counters[0] + 1 - len(counters)
    verdict, detail = said(bundle, "counters_unbroken")
    assert verdict == "fail"
    assert f"numbered {counters[0]} to {counters[-1]}, {missing} missing" in detail
    assert bundle.lineage["segments"] == Counter(row["workload_segment"] for row in theirs)
    for row in theirs:
        mine = ours[int(row["counter_id"])]
        assert mine["duration_ns"] == round(float(row["latency_ms"]) * 1e6)
        assert (mine["worker_id"], mine["dp_rank"], mine["segment"]) == (row["worker_id"], 0, row["workload_segment"])
        for name in ("sum_prefill_tokens", "num_prefill_requests", "num_decode_requests", "sum_decode_kv_tokens"):
            assert mine[name] == int(row[name])


def test_a_real_capture_begins_cold(gpu: dict[str, Bundle]) -> None:
    """Its first pass took 3,061 ms for 128 tokens, later ones of as many take 34 ms."""
    table = gpu["dsv4"].table("passes")
    assert table is not None
    primer = {row["counter"]: row for row in table.to_pylist() if row["phase"] == "primer"}
    assert primer[14]["duration_ns"] == 3_061_172_000
    warm = [row for row in table.to_pylist() if row["phase"] == "profile" and row["sum_prefill_tokens"] == 128]
    assert warm
    assert all(row["duration_ns"] < 50_000_000 for row in warm)
    assert said(gpu["qwen3"], "passes_warm")[0] == "pass"


def test_one_of_four_ranks_is_no_complete_capture(gpu: dict[str, Bundle]) -> None:
    assert gpu["dsv4"].identity.value("topology", "attention_dp") == 4
    verdict, detail = said(gpu["dsv4"], "ranks_complete")
    assert verdict == "fail"
    assert "missing: 1, 2, 3" in detail
    assert said(gpu["qwen3"], "ranks_complete")[0] == "pass"


def recorded(rank: int, counters: range, scope: str | None = None) -> bytes:
    records = [
        {"version": 1, "counter_id": n, **one(num_decode_requests=2, sum_decode_kv_tokens=90 + n)} for n in counters
    ]
    held = [{**record, "dp_rank": rank, "wall_time": 0.02 + record["counter_id"] / 1e3} for record in records]
    if scope:
        held = [{**record, "timing_scope": scope} for record in held]
    return b"\n".join(
        json.dumps({"received_at_ns": 1_790_000_000 * 10**9 + n * 10**8, "metrics": record}).encode()
        for n, record in enumerate(held)
    )


def test_streams_of_single_ranks_are_one_capture(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    for rank in range(3):
        (folder / f"part{rank}").write_bytes(recorded(rank, range(5, 11)))
    (run_id,) = import_any(folder, tmp_path / "store")
    bundle = open_bundle(tmp_path / "store" / run_id)
    table = bundle.table("passes")
    assert table is not None
    assert Counter(table["step"].to_pylist()) == dict.fromkeys(range(5, 11), 3)
    assert said(bundle, "ranks_complete")[0] == "pass"
    (folder / "part3").write_bytes(recorded(2, range(5, 11)))  # two of one rank: captures of their own
    assert len(import_any(folder, tmp_path / "other")) == 4


def test_the_producers_drift_is_in_the_identity(tmp_path: Path) -> None:
    found = []
    for scope in (None, "model_step_cuda"):
        path = tmp_path / str(scope)
        path.write_bytes(recorded(0, range(1, 4), scope))
        (run_id,) = import_any(path, tmp_path / "store")
        identity = open_bundle(tmp_path / "store" / run_id).identity
        found.append([identity.value("telemetry", f"fpm_{field}") for field in ("producer", "version", "scope")])
    recorder, native = found
    assert recorder[1] == 1
    assert "schedule()" in recorder[2]
    assert native[0] == "vLLM itself"
    assert "KV read" in native[1]
    assert native[2] == "model_step_cuda"


def test_a_capture_taken_twice_repeats_its_counters(tmp_path: Path) -> None:
    path = tmp_path / "twice"
    path.write_bytes(recorded(0, range(1, 5)) + b"\n" + recorded(0, range(1, 5)))
    (run_id,) = import_any(path, tmp_path / "store")
    verdict, detail = said(open_bundle(tmp_path / "store" / run_id), "counters_unbroken")
    assert verdict == "fail"
    assert "4 repeated, 1 reset" in detail


def benchmark(rank: int, kind: str = "rank", done: int = 2) -> dict[str, Any]:
    """Two points, of 2 prompts of 64 tokens and of 4 requests that decode; rank 1 is 1 ms slower."""

    def passes(of: int) -> list[dict[str, Any]]:
        prefill = {"num_prefill_requests": 2, "sum_prefill_tokens": 128, "sum_prefill_kv_tokens": 0}
        decode = {"num_decode_requests": 4, "sum_decode_kv_tokens": 400}
        shapes = [prefill | {"num_decode_requests": 0}, decode | {"num_prefill_requests": 0}]
        return [
            {"counter_id": n, "dp_rank": of, "wall_time": 0.01 * n + 0.001 * of, "scheduled_requests": shape}
            for n, shape in enumerate(shapes, 1)
        ]

    points = [{"point_type": "prefill", "batch_size": 2}, {"point_type": "decode", "batch_size": 4}]
    groups = [
        {"point": point, "rank_results": [{"dp_rank": of, "fpms": [passes(of)[n]]} for of in (0, 1)]}
        for n, point in enumerate(points)
    ]
    return {
        "schema_version": 2,
        "artifact_type": kind,
        "status": "complete",
        "valid": True,
        "dp": {"rank": rank, "size": 2},
        "coverage": {"expected_points": 2, "completed_points": done},
        "results": [{"point": point, "fpms": [passes(rank)[n]]} for n, point in enumerate(points)],
        "iteration_groups": groups,
    }


def test_a_self_benchmark_by_ranks_and_merged(tmp_path: Path) -> None:
    found = []
    for name, documents in {
        "apart": [benchmark(0), benchmark(1)],
        "merged": [benchmark(0), benchmark(0, "merged")],
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        for n, document in enumerate(documents):
            (folder / f"file{n}").write_text(json.dumps(document, indent=1))
        (run_id,) = import_any(folder, tmp_path / "store")
        bundle = open_bundle(tmp_path / "store" / run_id)
        assert bundle.kind == "sweep"
        assert said(bundle, "ranks_complete")[0] == said(bundle, "benchmark_complete")[0] == "pass"
        table = bundle.table("passes")
        assert table is not None
        keys = ("dp_rank", "counter", "segment", "duration_ns", "num_prefill_requests", "sum_decode_kv_tokens")
        found.append(sorted(tuple(row[key] for key in keys) for row in table.to_pylist()))
    assert found[0] == found[1]
    assert [row[:4] for row in found[0]] == [
        (0, 1, "prefill", 10_000_000),
        (0, 2, "decode", 20_000_000),
        (1, 1, "prefill", 11_000_000),
        (1, 2, "decode", 21_000_000),
    ]


def test_points_without_passes_are_figures(tmp_path: Path) -> None:
    point = {"point_type": "prefill", "batch_size": 2, "total_prefill_tokens": 128, "latency_ms": 12.5}
    document = {"schema_version": 2, "artifact_type": "rank", "points": [point], "status": "aborted"}
    (tmp_path / "figures").write_text(json.dumps(document))
    (run_id,) = import_any(tmp_path / "figures", tmp_path / "store")
    bundle = open_bundle(tmp_path / "store" / run_id)
    assert bundle.kind == "imported_summary"
    table = bundle.table("reported")
    assert table is not None
    (row,) = table.to_pylist()
    assert (row["name"], row["value"]) == ("latency_ms", 12.5)
    assert row["labels"] == "point_type=prefill batch_size=2 total_prefill_tokens=128"
    assert said(bundle, "benchmark_complete") == ("fail", "figures: status is 'aborted'")


def test_passes_and_kv_events_of_one_folder_are_one_run(tmp_path: Path) -> None:
    """The first pass ends at 0 s of its recorder and took 21 ms; the events are of 125 and 250 ms."""
    folder = tmp_path / "node"
    folder.mkdir()
    (folder / "fpm").write_bytes(recorded(0, range(1, 5)))
    events = [[1_790_000_000 + n / 8, [["BlockRemoved", [n], "GPU"]], 0] for n in (1, 2)]
    (folder / "kv").write_bytes(b"".join(map(msgpack.packb, events)))
    (run_id,) = import_any(folder, tmp_path / "store")
    bundle = open_bundle(tmp_path / "store" / run_id)
    assert (bundle.kind, sorted(bundle.tables)) == ("sweep", ["kv_events", "passes"])
    table = bundle.table("kv_events")
    assert table is not None
    assert table["time_ns"].to_pylist() == [146_000_000, 271_000_000]
    assert table["event_index"].to_pylist() == [0, 1]
    assert said(bundle, "one_engine_clock")[0] == "pass"
    assert len(bundle.lineage["source_files"]) == 2
    assert open_bundle(tmp_path / "store" / run_id).verify() == []


def test_kv_events_give_passes_without_times_their_clock(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    (folder / "fpm").write_text(json.dumps(one(num_decode_requests=2, sum_decode_kv_tokens=9)))
    (folder / "kv").write_text(json.dumps({"ts": 1_790_000_000.5, "events": [{"type": "AllBlocksCleared"}]}))
    (run_id,) = import_any(folder, tmp_path / "store")
    bundle = open_bundle(tmp_path / "store" / run_id)
    assert bundle.manifest["profile_start_unix_ns"] == 1_790_000_000_500_000_000
    assert bundle.rows("kv_events") == bundle.rows("passes") == 1
    assert said(bundle, "one_engine_clock")[0] == "unknown"
