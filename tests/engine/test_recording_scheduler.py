"""The recording scheduler over a small stand-in for vLLM: what its rows say, and that it tells every loss."""

from __future__ import annotations

import ast
import errno
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.bundle import open_bundle
from engine.importers import import_any
from engine.importers.fpm.records import is_record
from engine.importers.recording.files import SERVED_PASS
from engine.jsonl import problem_of
from engine.recording.rows import Series, read_series
from tests.engine import fake_vllm
from tests.engine.fake_vllm import PLUGIN, Request

VERSIONS = ["", "no_outputs", "no_preempted", "flags", "resumed_as_new", "no_outputs no_preempted flags"]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """The plug-in as a server has it: a copy of the file alone, over some version of vLLM."""

    return partial(fake_vllm.load_plugin, monkeypatch, tmp_path)


def one_pass(scheduler: Any) -> None:
    output = scheduler.schedule()
    assert scheduler.update_from_output(output, None) == "outputs"


def recorded(scheduler: Any, folder: Path) -> Series:
    scheduler.shutdown()
    assert scheduler.closed
    (series,) = read_series(folder)
    return series


def passes(series: Series) -> list[dict[str, Any]]:
    return [row for row in series.rows if row["kind"] in ("iter", "empty")]


def as_imported(row: dict[str, Any]) -> dict[str, Any]:
    """A row with seconds in place of nanoseconds, as a recording folder has it."""
    times = {name.replace("_ns", "_s"): row[name] / 1e9 for name in ("t_start_ns", "t_sched_end_ns", "t_end_ns")}
    return {
        **row,
        **times,
        "engine_iter": row["iter"],
        "arrivals": [[name, at / 1e9, *rest] for name, at, *rest in row["arrivals"]],
        "finished": [[*rest, at / 1e9] for *rest, at in row["finished"]],
        "finished_before": [[*rest, at / 1e9] for *rest, at in row["finished_before"]],
    }


def test_rows_say_who_was_in_each_pass(load: Callable[..., Any], tmp_path: Path) -> None:
    scheduler = load().RecordingScheduler(vllm_config=fake_vllm.config())
    scheduler.add_request(Request("a", 10, 3))
    scheduler.add_request(Request("b", 3, 2))
    for _ in range(4):
        one_pass(scheduler)
    one_pass(scheduler)  # nothing left to do
    series = recorded(scheduler, tmp_path / "rows")
    rows = passes(series)
    assert (series.lost, series.ended, series.dp_rank) == ([], True, 0)
    assert [row["reqs"] for row in rows] == [
        [["a", 0, 8, "n"]],
        [["a", 8, 2, "c"], ["b", 0, 3, "n"]],
        [["a", 10, 1, "d"], ["b", 3, 1, "d"]],
        [["a", 11, 1, "d"]],
        [],
    ]
    assert [row["kind"] for row in rows] == ["iter"] * 4 + ["empty"]
    assert [row["iter"] for row in rows] == [0, 1, 2, 3, 4]
    second = rows[1]
    assert {name: second[name] for name in ("num_prefill", "prefill_tokens", "prefill_ctx_tokens")} == {
        "num_prefill": 2,
        "prefill_tokens": 5,
        "prefill_ctx_tokens": 8,
    }
    assert second["var_prefill_length"] == 12.25  # of 10 and 3
    assert (rows[2]["num_decode"], rows[2]["decode_kv_tokens"], rows[2]["var_decode_kv_tokens"]) == (2, 13, 12.25)
    assert [(row["running_before"], row["running"], row["waiting_before"], row["waiting"]) for row in rows] == [
        (0, 1, 2, 1),
        (1, 2, 1, 0),
        (2, 2, 0, 0),
        (1, 1, 0, 0),
        (0, 0, 0, 0),
    ]
    assert [(row["queued_prefill"], row["queued_prefill_tokens"]) for row in rows] == [(1, 3), *[(0, 0)] * 4]
    # Blocks of 4: a holds 2 after eight tokens, 3 up to twelve; b one.
    assert [row["kv_blocks_used"] for row in rows] == [2, 4, 4, 3, 0]
    assert {row["kv_blocks_total"] for row in rows} == {10}
    assert [(row["kv_stored"], row["kv_removed"], row["kv_event_seq"]) for row in rows] == [
        *((3, 1, n) for n in range(4)),
        (0, 0, None),
    ]
    assert [(name, prompt, most) for name, _, prompt, most in rows[0]["arrivals"]] == [("a", 10, 3), ("b", 3, 2)]
    assert [row["finished"] for row in rows][:2] == [[], []]
    assert rows[2]["finished"][0][:5] == ["b", "FINISHED_LENGTH_CAPPED", 4, 2, 0]
    assert rows[3]["finished"][0][:5] == ["a", "FINISHED_LENGTH_CAPPED", 12, 3, 0]
    for before, row in zip([None, *rows], rows, strict=False):
        assert row["t_start_ns"] <= row["t_sched_end_ns"] <= row["t_output_ns"] <= row["t_end_ns"]
        idle = before is None or row["running_before"] == 0
        assert row["period_s"] == (None if idle else (row["t_end_ns"] - before["t_end_ns"]) / 1e9)
        assert row["own_us"] > 0
        assert problem_of(as_imported(row), SERVED_PASS) is None


def test_every_column_is_documented(load: Callable[..., Any], tmp_path: Path) -> None:
    scheduler = load().RecordingScheduler(vllm_config=fake_vllm.config())
    one_pass(scheduler)
    series = recorded(scheduler, tmp_path / "rows")
    docs = (PLUGIN.parents[3] / "docs/recording.md").read_text()
    columns = docs.partition("## Columns")[2].partition("\n## ")[0]
    named = {
        word for line in columns.splitlines() if line.startswith("| `") for word in line.split("|")[1].split("`")[1::2]
    }
    assert set(passes(series)[0]) - {"kind"} == named


def test_the_first_row_says_what_runs_and_how_it_is_set(load: Callable[..., Any], tmp_path: Path) -> None:
    scheduler = load().RecordingScheduler(vllm_config=fake_vllm.config(blocks=33, budget=64))
    one_pass(scheduler)
    meta = recorded(scheduler, tmp_path / "rows").meta
    assert meta["schema"] == "gapscope-passes/1"
    assert meta["exact_batches"] is True
    assert meta["vllm_version"] == "9.8.7"
    assert meta["scheduler"] == "vllm.v1.core.sched.scheduler.Scheduler"
    assert (meta["num_kv_blocks"], meta["num_usable_kv_blocks"], meta["block_size"]) == (33, 32, 4)
    assert (meta["device"], meta["device_name"]) == ("cpu", None)
    assert (meta["max_num_batched_tokens"], meta["async_scheduling"], meta["policy"]) == (64, False, "fcfs")
    assert meta["notes"] == []
    assert abs(meta["wall_ns"] / 1e9 - meta["ts"]) < 1
    text = json.dumps(meta)
    assert "/a/path" not in text
    assert "10.0.0.1" not in text


@pytest.mark.parametrize("shape", VERSIONS)
def test_preemption_in_every_version(load: Callable[..., Any], tmp_path: Path, shape: str) -> None:
    """Four blocks of four: in the third pass a needs a third block, and b gives up both of its own."""
    scheduler = load(shape).RecordingScheduler(vllm_config=fake_vllm.config(blocks=5, budget=16))
    scheduler.add_request(Request("a", 7, 4))
    scheduler.add_request(Request("b", 7, 4))
    for _ in range(6):
        one_pass(scheduler)
    series = recorded(scheduler, tmp_path / "rows")
    rows = passes(series)
    assert [row["reqs"] for row in rows] == [
        [["a", 0, 7, "n"], ["b", 0, 7, "n"]],
        [["a", 7, 1, "d"], ["b", 7, 1, "d"]],
        [["a", 8, 1, "d"]],
        [["a", 9, 1, "d"]],
        [["b", 0, 9, "r"]],
        [["b", 9, 1, "d"]],
    ]
    assert [row["preempted"] for row in rows] == [[], [], ["b"], [], [], []]
    queued = [(row["queued_preempted"], row["queued_preempted_tokens"]) for row in rows]
    assert queued == [(0, 0), (0, 0), (1, 9), (1, 9), (0, 0), (0, 0)]
    assert rows[4]["var_prefill_length"] == 0.0
    assert [name for row in rows for name, *_ in row["finished"]] == ["a", "b"]
    assert rows[5]["finished"][0][4] == 1
    assert series.lost == []


def test_aborts_between_passes(load: Callable[..., Any], tmp_path: Path) -> None:
    scheduler = load().RecordingScheduler(vllm_config=fake_vllm.config())
    scheduler.add_request(Request("a", 4, 9))
    one_pass(scheduler)
    scheduler.abort("a")
    scheduler.add_request(Request("a", 5, 1))  # the same name once more is another request
    scheduler.add_request(Request("b", 5, 1))
    scheduler.abort("b")
    one_pass(scheduler)
    rows = passes(recorded(scheduler, tmp_path / "rows"))
    assert rows[1]["finished_before"][1][:4] == ["b", "FINISHED_ABORTED", 0, 0]
    assert rows[1]["finished_before"][0][:4] == ["a", "FINISHED_ABORTED", 4, 1]
    assert rows[1]["reqs"] == [["a", 0, 5, "n"]]


def test_a_reset_is_a_row(load: Callable[..., Any], tmp_path: Path) -> None:
    scheduler = load().RecordingScheduler(vllm_config=fake_vllm.config())
    assert scheduler.reset_prefix_cache() is True
    one_pass(scheduler)
    rows = recorded(scheduler, tmp_path / "rows").rows
    assert [row["kind"] for row in rows] == ["reset_prefix_cache", "empty"]
    assert rows[0]["ok"] is True


def test_unknown_is_null_and_said(load: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = load()
    monkeypatch.setenv("GAPSCOPE_RECORD_STATS", "0")
    scheduler = plugin.RecordingScheduler(vllm_config=fake_vllm.config(kv_events=False))
    scheduler.add_request(Request("a", 10, 3))
    one_pass(scheduler)
    series = recorded(scheduler, tmp_path / "rows")
    (row,) = passes(series)
    for name in ("queued_prefill", "queued_preempted_tokens", "worker_runq_wait_s", "kv_stored", "kv_event_seq"):
        assert row[name] is None
    assert row["waiting"] == 0
    assert [note.partition(" ")[0] for note in series.meta["notes"]] == ["GAPSCOPE_RECORD_STATS", "The"]


def test_asynchronous_scheduling_gives_sums_and_says_so(load: Callable[..., Any], tmp_path: Path) -> None:
    plugin = load()
    scheduler = plugin.RecordingScheduler(vllm_config=fake_vllm.config(ahead=True))
    assert isinstance(scheduler, sys.modules["vllm.v1.core.sched.async_scheduler"].AsyncScheduler)
    scheduler.add_request(Request("a", 10, 3))
    scheduler.add_request(Request("b", 3, 2))
    for _ in range(5):
        one_pass(scheduler)
    series = recorded(scheduler, tmp_path / "rows")
    assert series.rows == []
    assert series.lost == []
    assert series.meta["exact_batches"] is False
    assert "--no-async-scheduling gives exact batches" in series.meta["notes"][0]
    (file,) = (tmp_path / "rows").glob("fpm-dp0-*.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert all(map(is_record, records))
    assert [record["metrics"]["counter_id"] for record in records] == [0, 1, 2, 3]  # nothing for the empty call
    assert records[1]["metrics"]["scheduled_requests"] == {
        "num_prefill_requests": 2,
        "sum_prefill_tokens": 5,
        "var_prefill_length": 12.25,
        "sum_prefill_kv_tokens": 8,
        "num_decode_requests": 0,
        "sum_decode_kv_tokens": 0,
        "var_decode_kv_tokens": 0.0,
    }
    assert records[0]["metrics"]["queued_requests"]["sum_prefill_tokens"] == 3


def test_passes_scheduled_ahead_of_the_end_of_others(load: Callable[..., Any], tmp_path: Path) -> None:
    """The second pass names a request that ends with the first."""
    scheduler = load().RecordingScheduler(vllm_config=fake_vllm.config(ahead=True))
    scheduler.add_request(Request("a", 4, 1))
    first = scheduler.schedule()
    second = scheduler.schedule()
    second.num_scheduled_tokens, second.total_num_scheduled_tokens = {"a": 1}, 1
    second.scheduled_cached_reqs.req_ids = ["a"]
    second.scheduled_cached_reqs.num_computed_tokens.append(4)
    second.scheduled_cached_reqs.num_output_tokens.append(1)
    scheduler._rec_pending[id(second)][1].scheduled = {"a": 1}
    scheduler._rec_pending[id(second)][1].total = 1
    scheduler.update_from_output(first, None)
    scheduler.update_from_output(second, None)
    assert recorded(scheduler, tmp_path / "rows").lost == []
    (file,) = (tmp_path / "rows").glob("fpm-dp0-*.jsonl")
    assert json.loads(file.read_text().splitlines()[1])["metrics"]["scheduled_requests"]["num_decode_requests"] == 1


def test_each_rank_has_its_own_files(load: Callable[..., Any], tmp_path: Path) -> None:
    plugin = load()
    both = [plugin.RecordingScheduler(vllm_config=fake_vllm.config(rank=rank)) for rank in (0, 1)]
    for rank, scheduler in enumerate(both):
        scheduler.add_request(Request(f"r{rank}", 4, 1))
        one_pass(scheduler)
    for scheduler in both:
        scheduler.shutdown()
    found = read_series(tmp_path / "rows")
    assert [(s.dp_rank, passes(s)[0]["reqs"]) for s in found] == [(0, [["r0", 0, 4, "n"]]), (1, [["r1", 0, 4, "n"]])]


def test_a_part_is_an_input_of_its_own(load: Callable[..., Any], tmp_path: Path) -> None:
    scheduler = load().RecordingScheduler(vllm_config=fake_vllm.config())
    scheduler.add_request(Request("a", 10, 3))
    scheduler.add_request(Request("b", 3, 2))
    for _ in range(4):
        one_pass(scheduler)
    series = recorded(scheduler, tmp_path / "rows")
    (run_id,) = import_any(tmp_path / "rows", tmp_path / "store")
    bundle = open_bundle(tmp_path / "store" / run_id)
    table = bundle.table("passes")
    assert table is not None
    got = table.to_pylist()
    assert [[list(member.values()) for member in row["members"]] for row in got] == [
        [m[:3] for m in row["reqs"]] for row in passes(series)
    ]
    first = passes(series)[0]["t_start_ns"]
    for row, written in zip(got, passes(series), strict=True):
        assert abs(row["start_ns"] - (written["t_start_ns"] - first)) <= 2000  # epoch seconds hold microseconds
    wall = first + series.meta["wall_ns"] - series.meta["mono_ns"]
    assert abs(bundle.manifest["profile_start_unix_ns"] - wall) <= 1000
    cost = bundle.identity.value("telemetry", "recorder_own_us")
    took = sorted(row["own_us"] for row in passes(series))
    assert cost["passes"] == 4
    assert cost["median"] == pytest.approx((took[1] + took[2]) / 2, abs=0.06)
    assert cost["mean"] == pytest.approx(sum(took) / 4, abs=0.06)
    assert cost["p99"] == pytest.approx(took[2] + 0.97 * (took[3] - took[2]), abs=0.06)
    verdicts = {check["check"]: check["verdict"] for check in bundle.manifest["qualification"]}
    assert verdicts == {"rows_used": "pass", "passes_unbroken": "pass", "ledger_balances": "pass"}


# -- bounds and losses -------------------------------------------------------------------------------------------------


def test_files_rotate_within_the_bound(
    load: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = load()
    monkeypatch.setenv("GAPSCOPE_RECORD_MAX_MB", "0.3")
    monkeypatch.setattr(plugin, "WAITING_ROWS", 10_000)
    scheduler = plugin.RecordingScheduler(vllm_config=fake_vllm.config())
    for _ in range(900):
        one_pass(scheduler)
    series = recorded(scheduler, tmp_path / "rows")
    files = sorted((tmp_path / "rows").iterdir())
    assert sum(file.stat().st_size for file in files) <= 300_000
    assert len(files) >= 2
    for file in files:
        assert json.loads(file.read_text().partition("\n")[0])["kind"] == "meta"
    first = passes(series)[0]["iter"]
    assert first > 0
    assert [row["iter"] for row in passes(series)] == list(range(first, 900))
    assert series.lost == [f"rank 0: the first {first} passes were deleted: GAPSCOPE_RECORD_MAX_MB was reached"]
    late = passes(series)[5]["t_start_ns"]
    assert read_series(tmp_path / "rows", since_ns=late)[0].lost == []  # what was asked for is all there


def test_more_passes_than_may_wait(load: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = load()
    monkeypatch.setattr(plugin, "WAITING_ROWS", 5)
    monkeypatch.setattr(plugin, "WRITE_EVERY_S", 3600)
    scheduler = plugin.RecordingScheduler(vllm_config=fake_vllm.config())
    for _ in range(5):
        one_pass(scheduler)
    scheduler.add_request(Request("a", 10, 2))
    for _ in range(2):
        one_pass(scheduler)  # a's arrival and admission are among what does not fit
    scheduler._rec_writer.flush()
    for _ in range(2):
        one_pass(scheduler)
    series = recorded(scheduler, tmp_path / "rows")
    assert [row["iter"] for row in passes(series)] == [0, 1, 2, 3, 4, 7, 8]
    assert passes(series)[5]["reqs"] == [["a", 10, 1, "d"]]
    assert passes(series)[5]["arrivals"][0][0] == "a"  # kept for the next pass that is written
    assert series.lost == [
        "rank 0: 2 passes were not written (numbers 5 to 6): more passes waited for the writer than it may hold"
    ]
    assert read_series(tmp_path / "rows", until_ns=passes(series)[3]["t_start_ns"])[0].lost == []


def test_passes_lost_at_the_very_end_are_told(
    load: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = load()
    monkeypatch.setattr(plugin, "WAITING_ROWS", 5)
    monkeypatch.setattr(plugin, "WRITE_EVERY_S", 3600)
    scheduler = plugin.RecordingScheduler(vllm_config=fake_vllm.config())
    for _ in range(8):
        one_pass(scheduler)
    assert (
        recorded(scheduler, tmp_path / "rows").lost[0].startswith("rank 0: 3 passes were not written (numbers 5 to 7)")
    )


def test_a_full_disk_is_survived_and_told(
    load: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = load()
    monkeypatch.setattr(plugin, "WRITE_EVERY_S", 3600)
    scheduler = plugin.RecordingScheduler(vllm_config=fake_vllm.config())
    scheduler.add_request(Request("a", 4, 20))
    one_pass(scheduler)
    scheduler._rec_writer.flush()
    write = os.write

    def full(fd: int, data: bytes) -> int:
        if len(data) > 20:
            return write(fd, data[:20])  # takes a little, then nothing
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(plugin.os, "write", lambda fd, data: full(fd, data) if len(data) > 200 else full(fd, b""))
    for _ in range(3):
        one_pass(scheduler)
    scheduler._rec_writer.flush()
    monkeypatch.setattr(plugin.os, "write", write)
    one_pass(scheduler)
    series = recorded(scheduler, tmp_path / "rows")
    assert [row["iter"] for row in passes(series)] == [0, 4]
    assert passes(series)[1]["reqs"] == [["a", 7, 1, "d"]]
    assert series.lost == [
        "rank 0: 3 passes were not written (numbers 1 to 3): the disk took no more: No space left on device"
    ]


def test_a_fault_of_the_recorder_is_none_of_the_server(load: Callable[..., Any], tmp_path: Path) -> None:
    scheduler = load().RecordingScheduler(vllm_config=fake_vllm.config())
    one_pass(scheduler)
    scheduler._rec_pool = None
    writer = scheduler._rec_writer
    for _ in range(3):
        one_pass(scheduler)
    writer.join(timeout=10)
    series = recorded(scheduler, tmp_path / "rows")
    assert [row["iter"] for row in passes(series)] == [0]
    assert series.lost == ["rank 0: recording ended at pass 1: the recorder failed; the server's log says how"]


def test_a_killed_server_leaves_whole_rows(load: Callable[..., Any], tmp_path: Path) -> None:
    scheduler = load().RecordingScheduler(vllm_config=fake_vllm.config())
    for _ in range(3):
        one_pass(scheduler)
    scheduler._rec_writer.flush()
    (file,) = (tmp_path / "rows").iterdir()
    cut = tmp_path / "cut" / file.name
    cut.parent.mkdir()
    cut.write_bytes(file.read_bytes()[:-30])
    (series,) = read_series(cut.parent)
    assert ([row["iter"] for row in series.rows], series.ended, series.lost) == ([0, 1], False, [])
    scheduler.shutdown()


def test_without_a_folder_nothing_is_recorded(
    load: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = load()
    monkeypatch.delenv("GAPSCOPE_RECORD")
    scheduler = plugin.RecordingScheduler(vllm_config=fake_vllm.config())
    scheduler.add_request(Request("a", 4, 1))
    one_pass(scheduler)
    assert scheduler.did == [[("a", 0, 4)]]
    assert not (tmp_path / "rows").exists()


def test_it_can_be_copied_to_a_server() -> None:
    """Nothing but the standard library, msgspec and vLLM is imported."""
    tops = set()
    for node in ast.walk(ast.parse(PLUGIN.read_text())):
        if isinstance(node, ast.Import):
            tops |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            tops.add(str(node.module).partition(".")[0])
    assert tops - set(sys.stdlib_module_names) == {"msgspec", "vllm"}
