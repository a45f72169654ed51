"""LMBenchmark, kv-cache-tester and fw-ai/benchmark: CSV files of a few rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from foreign_files import by_id, checks, fact, figures, plan, rows, runs, verdict, write

from engine.errors import GapscopeError

LM_HEAD = "prompt_tokens,generation_tokens,ttft,generation_time,user_id,question_id,launch_time,finish_time"
LM_ROWS = ["100,5,0.5,1.0,3,0,1700000000.0,1700000001.5", "120,1,0.25,0.0,4,1,1700000001.0,1700000001.25"]


def lm(*lines: str, head: str = LM_HEAD) -> str:
    return "\n".join((head, *(lines or LM_ROWS))) + "\n"


def test_lmbenchmark(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"summary.csv": lm()})
    (part,) = plan(folder).parts
    assert (part.format, part.kind) == ("lmbenchmark", "measured")
    (run,) = runs(folder, tmp_path / "store")
    first, second = by_id(run)["2"], by_id(run)["3"]
    assert (first["dispatched_ns"], first["first_visible_ns"]) == (0, 5 * 10**8)
    assert (first["last_visible_ns"], first["end_ns"]) == (1_500_000_000, 1_500_000_000)
    assert (first["conversation_id"], first["lane"], first["turn_index"]) == ("user 3", 3, 0)
    assert (second["dispatched_ns"], second["output_tokens"]) == (10**9, 1)
    assert run.manifest["profile_start_unix_ns"] == 1_700_000_000 * 10**9
    assert [(p["start_ns"], p["end_ns"]) for p in run.manifest["phases"]] == [(0, 1_500_000_000)]
    assert verdict(run, "times_add_up") == "pass"
    assert fact(run, "definitions", "end_of_latency") == "end of the response"


def test_lmbenchmark_with_an_index_column_and_an_answer_without_text(tmp_path: Path) -> None:
    text = lm("0,100,0,0.0,0.0,3,0,1700000000.0,1700000002.0", head=f",{LM_HEAD}")
    (run,) = runs(write(tmp_path / "in", {"a.csv": text}), tmp_path / "store")
    (row,) = rows(run)
    assert (row["status"], row["flags"], row["output_tokens"], row["first_visible_ns"]) == (
        "ok",
        "zero output",
        0,
        None,
    )


def test_lmbenchmark_times_that_do_not_add_up(tmp_path: Path) -> None:
    """Milliseconds in the column of the TTFT."""
    text = lm("100,5,500,1.0,3,0,1700000000.0,1700000001.5")
    (run,) = runs(write(tmp_path / "in", {"a.csv": text}), tmp_path / "store")
    assert verdict(run, "times_add_up") == "fail"
    (row,) = rows(run)
    assert row["flags"] == "times out of order"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("100,five,0.5,1.0,3,0,1700000000.0,1700000001.5", "generation_tokens is 'five', expected a number"),
        ("100,5,0.5,1.0,3,0,,1700000001.5", "launch_time is empty"),
        ("100,-5,0.5,1.0,3,0,1700000000.0,1700000001.5", "generation_tokens is -5, expected a whole number"),
        ("100,5.5,0.5,1.0,3,0,1700000000.0,1700000001.5", "generation_tokens is 5.5, expected a whole number"),
        ("100,5,0.5", "3 cells where the head has 8"),
    ],
)
def test_lmbenchmark_rows_that_are_none(tmp_path: Path, line: str, reason: str) -> None:
    folder = write(tmp_path / "in", {"a.csv": lm(LM_ROWS[0], line)})
    with pytest.raises(GapscopeError, match=f"a.csv line 3: .*{reason}"):
        runs(folder, tmp_path / "store")
    (run,) = runs(folder, tmp_path / "store", skip_bad_rows=True)
    assert len(rows(run)) == 1
    assert verdict(run, "rows_used") == "fail"


def test_lmbenchmark_head_alone(tmp_path: Path) -> None:
    (run,) = runs(write(tmp_path / "in", {"a.csv": LM_HEAD + "\n"}), tmp_path / "store")
    assert rows(run) == []
    assert verdict(run, "times_add_up") == "unknown"


def test_a_csv_without_its_columns_is_not_lmbenchmark(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"a.csv": lm(head=LM_HEAD.replace("ttft", "first"))})
    with pytest.raises(GapscopeError, match="in no format that can be imported"):
        plan(folder)


KV_HEAD = (
    "user_id,request_idx,trace_id,timestamp,request_type,input_tokens,output_tokens_expected,output_tokens_actual,"
    "cache_hit_blocks,cache_miss_blocks,ttft,ttlt,itl,delay_expected,delay_actual,success,error_message,"
    "theoretical_cache_hit_blocks,request_start_time,prefill_complete_time,request_complete_time,token_timestamps,"
    "tokens_per_chunk"
)


def kv(user: str, index: int, start: float, stamps: list[float], tokens: list[int], **cells: Any) -> str:
    values: dict[str, Any] = {
        "user_id": user,
        "request_idx": index,
        "trace_id": "t1",
        "timestamp": start,
        "request_type": "s",
        "input_tokens": 1000,
        "output_tokens_expected": 4,
        "output_tokens_actual": sum(tokens),
        "cache_hit_blocks": 6,
        "cache_miss_blocks": 4,
        "ttft": stamps[0] - start if stamps else "",
        "ttlt": stamps[-1] - start if stamps else "",
        "itl": (stamps[-1] - stamps[0]) / (sum(tokens) - 1) if sum(tokens) > 1 else 0,
        "delay_expected": 0,
        "delay_actual": 0,
        "success": "True",
        "error_message": "",
        "theoretical_cache_hit_blocks": 8,
        "request_start_time": start,
        "prefill_complete_time": stamps[0] if stamps else "",
        "request_complete_time": (stamps[-1] if stamps else start) + 0.5,
        "token_timestamps": f'"{json.dumps(stamps)}"',
        "tokens_per_chunk": f'"{json.dumps(tokens)}"',
        **cells,
    }
    return ",".join(str(values[name]) for name in KV_HEAD.split(","))


def kv_file(*lines: str) -> str:
    return "\n".join((KV_HEAD, *lines)) + "\n"


KV_ROWS = (
    kv("user_0", 0, 1000.0, [1000.5, 1001.0, 1002.0], [2, 1, 1]),
    kv("user_1", 0, 1001.0, [1001.25], [1]),
    kv("user_0", 1, 1003.0, [], [], success="False", error_message="HTTP 500"),
)


def test_kv_cache_tester(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"detailed_results.csv": kv_file(*KV_ROWS)})
    (part,) = plan(folder).parts
    assert (part.format, part.kind) == ("kv-cache-tester", "measured")
    (run,) = runs(folder, tmp_path / "store")
    found = by_id(run)
    first, second, failed = found["user_0:t1:0"], found["user_1:t1:0"], found["user_0:t1:1"]
    assert (first["dispatched_ns"], first["first_visible_ns"], first["last_visible_ns"]) == (0, 5 * 10**8, 2 * 10**9)
    assert (first["output_tokens"], first["requested_output_tokens"]) == (4, 4)
    assert first["flags"] == "several tokens a chunk; several tokens in the first chunk"
    assert (first["lane"], second["lane"], failed["lane"]) == (0, 1, 0)
    assert (first["source_trace_id"], failed["turn_index"]) == ("t1", 1)
    assert first["cached_tokens"] is None  # the client's expectation is no measurement
    assert (failed["status"], failed["error_message"], failed["output_tokens"]) == ("error", "HTTP 500", None)
    assert failed["first_visible_ns"] is None
    chunks = [
        (r["ordinal"], r["time_ns"], r["tokens"]) for r in rows(run, "chunks") if r["request_id"] == "user_0:t1:0"
    ]
    assert chunks == [(0, 5 * 10**8, 2), (1, 10**9, 1), (2, 2 * 10**9, 1)]
    assert verdict(run, "itl_agrees") == "pass"
    assert verdict(run, "chunk_tokens") == "pass"
    told = figures(run)
    assert told["theoretical_cache_hit_rate", "value"] == pytest.approx(18 / 30)
    assert told["theoretical_infinite_cache_hit_rate", "value"] == pytest.approx(24 / 30)
    assert fact(run, "client", "lanes") == 2


def test_a_user_who_plays_a_trace_again(tmp_path: Path) -> None:
    again = kv("user_0", 0, 1010.0, [1010.5, 1011.0], [1, 1])
    (run,) = runs(write(tmp_path / "in", {"a.csv": kv_file(KV_ROWS[0], again)}), tmp_path / "store")
    assert sorted(by_id(run)) == ["user_0:t1:0", "user_0:t1:0#2"]


def test_kv_cache_tester_that_says_two_things(tmp_path: Path) -> None:
    odd = kv("user_0", 0, 1000.0, [1000.5, 1001.0], [1, 1], itl=5.0, output_tokens_actual=3)
    (run,) = runs(write(tmp_path / "in", {"a.csv": kv_file(odd)}), tmp_path / "store")
    assert verdict(run, "itl_agrees") == "fail"
    assert verdict(run, "chunk_tokens") == "fail"


def test_cells_longer_than_the_standard_library_reads(tmp_path: Path) -> None:
    stamps = [1766198354.5 + k / 1000 for k in range(12_000)]
    line = kv("user_0", 0, 1766198354.0, stamps, [1] * 12_000)
    assert len(line) > 200_000
    (run,) = runs(write(tmp_path / "in", {"a.csv": kv_file(line)}), tmp_path / "store")
    chunks = run.table("chunks")
    assert chunks is not None
    assert chunks.num_rows == 12_000


def test_kv_cache_tester_zero_output_and_null_times(tmp_path: Path) -> None:
    empty = kv("user_0", 0, 1000.0, [], [], itl="nan", ttft="nan")
    (run,) = runs(write(tmp_path / "in", {"a.csv": kv_file(empty)}), tmp_path / "store")
    (row,) = rows(run)
    assert (row["status"], row["flags"], row["output_tokens"]) == ("ok", "zero output", 0)
    assert row["first_visible_ns"] is None


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"token_timestamps": "often"}, "token_timestamps is 'often', expected a list of numbers"),
        ({"request_start_time": "noon"}, "request_start_time is 'noon', expected a number"),
        ({"input_tokens": "-1"}, "input_tokens is -1"),
    ],
)
def test_kv_cache_tester_rows_that_are_none(tmp_path: Path, cells: dict[str, str], reason: str) -> None:
    folder = write(tmp_path / "in", {"a.csv": kv_file(KV_ROWS[0], kv("user_1", 0, 1001.0, [1001.5], [1], **cells))})
    with pytest.raises(GapscopeError, match=f"a.csv line 3: {reason}"):
        runs(folder, tmp_path / "store")
    (run,) = runs(folder, tmp_path / "store", skip_bad_rows=True)
    assert len(rows(run)) == 1


def test_kv_cache_tester_of_cache_rates(tmp_path: Path) -> None:
    head = (
        "request_id,phase_id,cache_hit_rate,context_size,cached_tokens,unique_tokens,output_tokens,ttft,ttlt,"
        "generation_time,total_time,launch_time,finish_time,concurrency_level,itl,prefill_complete_time,"
        "token_timestamps,tokens_per_chunk"
    )
    line = (
        'P1_r0,SUSTAINED,50,8000,3840,4160,3,0.5,1.5,1.0,1.5,100.0,101.5,2,0.5,100.5,"[100.5, 101.0, 101.5]","[1,1,1]"'
    )
    (run,) = runs(write(tmp_path / "in", {"a.csv": f"{head}\n{line}\n"}), tmp_path / "store")
    (row,) = rows(run)
    assert (row["request_id"], row["input_tokens"], row["output_tokens"]) == ("P1_r0", 8000, 3)
    assert (row["first_visible_ns"], row["last_visible_ns"]) == (5 * 10**8, 1_500_000_000)
    assert (row["source_kind"], row["cached_tokens"]) == ("SUSTAINED", None)
    assert verdict(run, "itl_agrees") == "pass"


FW_HEAD = (
    "Provider,Model,Prompt Tokens,Generation Tokens,Stream,Temperature,Logprobs,Concurrency,Time To First Token,"
    "Latency Per Token,Num Tokens,Total Latency,Num Requests,Qps,P50 Time To First Token,P99 Time To First Token,"
    "P50 Total Latency,P99.9 Total Latency"
)
FW_ROW = "vllm,org/m,124.0,128,True,1.0,,8,480.0,22.0,129.0,3300.0,50,0.5,480,500,3300,3400"


def test_fw_benchmark(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"a.csv": f"{FW_HEAD}\n{FW_ROW}\n{FW_ROW.replace(',8,', ',16,')}\n"})
    parts = plan(folder).parts
    assert [(part.kind, part.uses[0].what) for part in parts] == [
        ("imported_summary", "line 2"),
        ("imported_summary", "line 3"),
    ]
    first, second = runs(folder, tmp_path / "store")
    told = figures(first)
    assert told["Time To First Token", "mean"] == 480.0
    assert told["Total Latency", "p99.9"] == 3400.0
    assert told["Qps", "value"] == 0.5
    assert {r["unit"] for r in rows(first, "reported") if r["metric"] in ("ttft", "e2e")} == {"ms"}
    assert (fact(first, "client", "lanes"), fact(second, "client", "lanes")) == (8, 16)
    assert verdict(first, "units_plausible") == "pass"


def test_fw_benchmark_in_seconds(tmp_path: Path) -> None:
    """129 tokens in what would be 3.3 ms."""
    line = FW_ROW.replace("480.0", "0.48").replace("3300.0", "3.3")
    (run,) = runs(write(tmp_path / "in", {"a.csv": f"{FW_HEAD}\n{line}\n"}), tmp_path / "store")
    assert verdict(run, "units_plausible") == "fail", checks(run)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{FW_HEAD}\n", "has a head and no row"),
        (f"{FW_HEAD}\n{FW_ROW.replace('3300.0', 'slow')}\n", "Total Latency is 'slow', expected a number"),
        (f"{FW_HEAD}\n{FW_ROW},7\n", "19 cells where the head has 18"),
    ],
)
def test_fw_benchmark_that_is_broken(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(GapscopeError, match=reason):
        runs(write(tmp_path / "in", {"a.csv": text}), tmp_path / "store")
