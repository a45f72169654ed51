"""AIPerf files of every generation, written by hand from what the tool's versions write; and broken ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.errors import GapscopeError
from engine.importers import plan_import
from engine.importers.clients.flags import TIMES_WRONG, UNFINISHED
from engine.intake import open_intake
from tests.engine.aiperf_runs import SECOND, START, failed, imported, record, write_json, write_lines

MS = 1_000_000


def one(path: Path, tmp_path: Path, **options: Any) -> Any:
    (run,) = imported(path, tmp_path / "store", **options)
    return run


def block(value: float, unit: str = "ms", **more: float) -> dict[str, Any]:
    return {"unit": unit, "avg": value, **more}


# Layouts


def test_first_public_layout(tmp_path: Path) -> None:
    rows = [
        {
            "metadata": {
                "timestamp_ns": START + n * SECOND,
                "credit_phase": "warmup" if n == 0 else "profiling",
                "x_request_id": f"r{n}",
                "x_correlation_id": f"c{n}",
                "worker_id": "w",
                "record_processor_id": "p",
                "request_end_ns": START + n * SECOND + 400 * MS,
            },
            "metrics": {
                "ttft": {"value": 100, "unit": "ms"},
                "ttst": {"value": 10, "unit": "ms"},
                "request_latency": {"value": 400, "unit": "ms"},
                "output_sequence_length": {"value": 3, "unit": "tokens"},
                "request_count": {"value": 1, "unit": "requests"},
            },
            "error": None,
        }
        for n in range(3)
    ]
    run = one(write_lines(tmp_path / "in" / "profile_export.jsonl", rows), tmp_path)
    found = run.requests
    assert [found[f"r{n}"]["phase"] for n in range(3)] == ["warmup", "profile", "profile"]
    assert [found[f"r{n}"]["status"] for n in range(3)] == ["ok"] * 3
    assert found["r1"]["dispatched_ns"] == 0  # the earliest row of the profile: nothing else says when it began
    assert found["r2"]["first_visible_ns"] == SECOND + 100 * MS
    assert found["r2"]["last_visible_ns"] == SECOND + 400 * MS
    assert run.manifest["lineage"]["profile_window"] == "the rows: earliest credit to latest end"


def test_first_summary_keeps_its_figures_under_records(tmp_path: Path) -> None:
    rows = [record(n) for n in range(4)]
    write_lines(tmp_path / "in/profile_export.jsonl", rows)
    document = {
        "records": {"ttft": block(100.0, p50=100.0, min=100.0, max=100.0, std=0.0, count=4)},
        "input_config": {"endpoint": {"model_names": ["m"], "streaming": True}, "loadgen": {"concurrency": 2}},
        "was_cancelled": False,
        "error_summary": [],
    }
    write_json(tmp_path / "in/profile_export_aiperf.json", document)
    run = one(tmp_path / "in", tmp_path)
    assert run.check("summary_reproduced") == (
        "pass",
        "all 6 figures of profile_export_aiperf.json follow from the rows.",
    )
    (mean,) = [r for r in run.table("reported") if r["metric"] == "ttft" and r["statistic"] == "mean"]
    assert (mean["name"], mean["value"], mean["n"]) == ("time_to_first_token", 100.0, 4)
    assert run.identity("model", "name") == "m"
    assert run.identity("definitions", "token_source") == "tokenized by the client"


def test_wrong_summary_is_told(tmp_path: Path) -> None:
    write_lines(tmp_path / "in/records.jsonl", [record(n) for n in range(4)])
    document = {
        "aiperf_version": "0.5.0",
        "input_config": {},
        "time_to_first_token": block(101.0, p50=100.0, count=4),
        "request_count": block(5, "requests"),
        "request_throughput": block(1.0, "requests/sec"),
    }
    write_json(tmp_path / "in/summary.json", document)
    run = one(tmp_path / "in", tmp_path)
    verdict, detail = run.check("summary_reproduced")
    assert verdict == "fail"
    assert detail.startswith(
        "2 of 4 figures of summary.json follow from the rows; not: time_to_first_token avg 101, from rows 100; "
        "request_count avg 5, from rows 4."
    )
    assert run.check("requests_accounted")[0] == "fail"
    # Four requests from 0 to 3.4 s are 1.176 a second; 1.0 would be over 4 s.
    verdict, detail = run.check("throughput_denominator")
    assert verdict == "fail"
    assert "1.176 requests/s over the activity span of 3.400 s" in detail
    assert "a division by 4.000 s" in detail


def test_old_versions_divide_by_the_activity_span(tmp_path: Path) -> None:
    write_lines(tmp_path / "in/a.jsonl", [record(n) for n in range(4)])
    document = {
        "aiperf_version": "0.4.0",
        "input_config": {},
        "request_count": block(4, "requests"),
        "output_token_throughput": block(16 / 3.4, "tokens/sec"),
        "benchmark_duration": block(3.4, "sec"),
        "start_time": "2023-11-14T14:13:19.500000",
        "end_time": "2023-11-14T14:13:24.500000",
    }
    write_json(tmp_path / "in/a.json", document)
    run = one(tmp_path / "in", tmp_path)
    # START is 2023-11-14 22:13:20 UTC: the clock of the summary is eight hours behind.
    assert (
        "read as UTC-8 h, which puts the first request 0.499 s after the start"
        in run.manifest["lineage"]["profile_window"]
    )
    assert run.manifest["profile_start_unix_ns"] == START - SECOND // 2
    assert run.requests["r0"]["dispatched_ns"] == SECOND // 2
    assert run.check("throughput_denominator")[0] == "pass"
    assert run.identity("definitions", "throughput_denominator") == "activity span, first start to last content"
    assert run.check("summary_reproduced")[0] == "pass"


def test_renamed_family_with_two_runs_in_one_folder(tmp_path: Path) -> None:
    for name, version in (("foo", "0.6.0"), ("bar", "0.7.0")):
        write_lines(tmp_path / f"in/{name}.jsonl", [record(n) for n in range(len(name))])
        document = {"aiperf_version": version, "input_config": {}, "request_count": block(3, "requests")}
        write_json(tmp_path / f"in/{name}.json", document)
        (tmp_path / f"in/{name}.csv").write_text(
            "Metric,avg,min,max,sum,p1,p50\nTime to First Token (ms),1,1,1,1,1,1\n"
        )
    with open_intake(tmp_path / "in") as intake:
        parts = {part.name: part for part in plan_import(intake).parts}
        assert {n: (p.version, sorted(u.file.base for u in p.uses)) for n, p in parts.items()} == {
            "in foo": ("0.6.0", ["foo.json", "foo.jsonl"]),
            "in bar": ("0.7.0", ["bar.json", "bar.jsonl"]),
        }
    assert len(imported(tmp_path / "in", tmp_path / "store")) == 2


def test_names_mean_nothing(tmp_path: Path) -> None:
    write_lines(tmp_path / "in/a.txt", [record(n) for n in range(2)])
    write_json(
        tmp_path / "in/b.dat", {"aiperf_version": "0.6.0", "input_config": {}, "request_count": block(2, "requests")}
    )
    run = one(tmp_path / "in", tmp_path)
    assert run.check("requests_accounted")[0] == "pass"
    assert run.manifest["lineage"]["tool_version"] == "0.6.0"


def test_repeated_runs(tmp_path: Path) -> None:
    for number in (1, 2):
        write_lines(
            tmp_path / f"in/profile_runs/run_000{number}/profile_export.jsonl", [record(n) for n in range(number)]
        )
    aggregate = {
        "schema_version": "1.0",
        "aiperf_version": "0.11.0",
        "metadata": {
            "aggregation_type": "confidence",
            "num_profile_runs": 3,
            "num_successful_runs": 2,
            "confidence_level": 0.95,
        },
        "metrics": {
            "ttft_avg": {"mean": 100.0, "std": 2.0, "cv": None, "ci_low": 90.0, "ci_high": 110.0, "unit": "ms"}
        },
    }
    write_json(tmp_path / "in/aggregate/profile_export_aiperf_aggregate.json", aggregate)
    runs = imported(tmp_path / "in", tmp_path / "store")
    assert sorted(run.manifest["kind"] for run in runs) == ["imported_summary", "measured", "measured"]
    (across,) = [run for run in runs if run.manifest["kind"] == "imported_summary"]
    assert {(r["scope"], r["statistic"], r["value"], r["n"]) for r in across.table("reported")} == {
        ("repeats", "mean", 100.0, 2),
        ("repeats", "std", 2.0, 2),
        ("repeats", "ci_low", 90.0, 2),
        ("repeats", "ci_high", 110.0, 2),
    }
    assert across.check("runs_complete") == ("fail", "2 of 3 runs succeeded")


def test_artefact_folder_with_the_commands_above(tmp_path: Path) -> None:
    write_lines(tmp_path / "in/aiperf_artifacts/profile_export.jsonl", [record(0)])
    command = "/venv/bin/aiperf profile --model m --streaming --concurrency 3 --benchmark-duration 60 --random-seed 7"
    (tmp_path / "in/benchmark_command.txt").write_text(command)
    engine = "vllm serve org/m --tensor-parallel-size=4 --max-num-seqs 8 --api-key hush --host 0.0.0.0 --port 1"
    (tmp_path / "in/vllm_command.txt").write_text(engine)
    run = one(tmp_path / "in", tmp_path)
    assert (run.identity("client", "lanes"), run.identity("client", "duration_s")) == (3, 60.0)
    assert run.identity("model", "name") == "org/m"
    assert run.identity("topology", "tp") == 4
    assert run.identity("scheduler", "max_num_seqs") == 8
    assert run.identity("source", "launch") == {"tensor_parallel_size": 4, "max_num_seqs": 8}
    assert run.identity("topology", "serving") is None
    assert run.identity("hardware", "part") is None


def test_gpu_and_network_samples(tmp_path: Path) -> None:
    write_lines(tmp_path / "in/r.jsonl", [record(0)])
    gpus = [
        {
            "timestamp_ns": START + n * SECOND,
            "dcgm_url": "http://gpu",
            "gpu_index": n % 2,
            "gpu_uuid": f"GPU-{n % 2}",
            "gpu_model_name": "H200",
            "telemetry_data": {"gpu_power_usage": 100.5 + n, "gpu_utilization": None},
        }
        for n in range(4)
    ]
    write_lines(tmp_path / "in/g.jsonl", gpus)
    probes = [
        {"timestamp_ns": START, "target_url": "u", "probe_type": "tcp_connect", "rtt_ns": 1500, "success": True},
        {"timestamp_ns": START, "target_url": "u", "probe_type": "tcp_connect", "rtt_ns": 9, "success": False},
    ]
    write_lines(tmp_path / "in/n.jsonl", probes)
    run = one(tmp_path / "in", tmp_path)
    samples = run.table("telemetry")
    assert [(s["name"], s["value"], s["unit"], s["labels"]) for s in samples if s["kind"] == "gpu"] == [
        ("gpu_power_usage", 100.5 + n, "W", f"gpu={n % 2}") for n in range(4)
    ]
    assert [(s["value"], s["unit"]) for s in samples if s["kind"] == "network"] == [(1500.0, "ns")]
    assert (run.identity("hardware", "part"), run.identity("hardware", "count")) == ("H200", 2)


def test_parquet_samples_of_a_histogram(tmp_path: Path) -> None:
    table = pa.table(
        {
            "endpoint_url": ["u"] * 3,
            "metric_name": ["running", "latency", "latency"],
            "metric_type": ["gauge", "histogram", "histogram"],
            "unit": ["requests", "s", "s"],
            "timestamp_ns": [START, START, START],
            "engine": ["0"] * 3,
            "value": [2.0, None, None],
            "sum": [None, 1.5, None],
            "count": [None, 3.0, None],
            "bucket_le": [None, None, "1"],
            "bucket_count": [None, None, 2.0],
        }
    ).replace_schema_metadata({"aiperf.version": "0.13.0"})
    (tmp_path / "in").mkdir()
    pq.write_table(table, tmp_path / "in/s.parquet")
    run = one(tmp_path / "in/s.parquet", tmp_path)
    assert {(s["name"], s["value"], s["labels"]) for s in run.table("telemetry")} == {
        ("running", 2.0, "engine=0"),
        ("latency_sum", 1.5, "engine=0"),
        ("latency_count", 3.0, "engine=0"),
    }


# Requests that only the log knows


LOG = """2026-01-01 00:00:00.000 - aiperf.cli - INFO - Starting AIPerf System
2026-01-01 00:00:01.000 - PhaseRunner - NOTICE - Phase warmup (warmup) sending complete | sent=1, completed=1
2026-01-01 00:00:02.000 - PhaseRunner - NOTICE - Phase warmup (warmup) complete | completed=1, cancelled=0, errors=0
2026-01-01 00:00:03.000 - PhaseRunner - NOTICE - Phase profiling sending complete | sent=1,006, completed=2, in_flight=4
2026-01-01 00:00:04.000 - PhaseRunner - NOTICE - Phase profiling complete | completed=3, cancelled=1,002, errors=1
"""


def test_log_accounts_for_requests_without_a_record(tmp_path: Path) -> None:
    write_lines(tmp_path / "in/p.jsonl", [record(0, "warmup"), record(1), record(2), failed(3)])
    (tmp_path / "in/logs").mkdir()
    (tmp_path / "in/logs/aiperf.log").write_text(LOG)
    run = one(tmp_path / "in", tmp_path)
    assert run.manifest["ledger"]["profile"] == {
        "attempted": 1006, "ok": 2, "error": 1, "rejected": 0, "canceled": 1002, "in_flight": 1,
    }  # fmt: skip
    assert run.manifest["ledger"]["warmup"]["attempted"] == 1
    lost = [row for row in run.requests.values() if row["error_type"] == "no record"]
    assert len(lost) == 1003
    assert all(row["dispatched_ns"] is None and row["input_tokens"] is None for row in lost)
    assert run.check("requests_accounted")[0] == "fail"


# Broken files and odd values


def test_every_request_failed(tmp_path: Path) -> None:
    run = one(write_lines(tmp_path / "in/p.jsonl", [failed(n) for n in range(3)]), tmp_path)
    assert run.manifest["kind"] == "measured"
    assert run.manifest["ledger"]["profile"]["error"] == 3
    assert run.check("error_rate") == (
        "fail",
        "every request failed: 3 of 3 requests failed as the tool counts, 100.00 %",
    )


def test_text_marks_and_line_ends(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in/p.jsonl", [record(n) for n in range(3)])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n") + b"\r\n")
    assert len(one(path, tmp_path).requests) == 3


def test_truncated_last_line(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in/p.jsonl", [record(n) for n in range(3)])
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(GapscopeError, match=r"p\.jsonl line 3: not JSON"):
        imported(path, tmp_path / "store")
    run = one(path, tmp_path, skip_bad_rows=True)
    assert sorted(run.requests) == ["r0", "r1"]
    assert run.check("rows_used")[0] == "fail"
    assert run.manifest["lineage"]["rows_left_out"] == 1


def test_duplicate_ids(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in/p.jsonl", [record(0), record(1), record(0)])
    with pytest.raises(GapscopeError, match=r"p\.jsonl line 3: x_request_id r0 occurred before"):
        imported(path, tmp_path / "store")
    assert len(one(path, tmp_path, skip_bad_rows=True).requests) == 2


def test_not_a_number_is_unknown(tmp_path: Path) -> None:
    rows = [record(0), record(1)]
    rows[0]["metrics"]["time_to_first_token"]["value"] = float("nan")
    rows[0]["metrics"]["input_sequence_length"]["value"] = float("inf")
    found = one(write_lines(tmp_path / "in/p.jsonl", rows), tmp_path).requests["r0"]
    assert (found["status"], found["first_visible_ns"], found["input_tokens"]) == ("ok", None, None)
    assert found["last_visible_ns"] is not None


def test_ids_beyond_64_bit(tmp_path: Path) -> None:
    row = record(0, x_request_id=2**64 - 1, x_correlation_id=2**63, turn_index=2**70)
    (found,) = one(write_lines(tmp_path / "in/p.jsonl", [row]), tmp_path).requests.values()
    assert (found["request_id"], found["play_id"], found["turn_index"]) == (str(2**64 - 1), str(2**63), None)


def test_units_are_read(tmp_path: Path) -> None:
    row = record(0)
    row["metrics"]["time_to_first_token"] = {"value": 0.1, "unit": "sec"}
    row["metrics"]["request_latency"] = {"value": 400_000, "unit": "us"}
    write_lines(tmp_path / "in/p.jsonl", [row, record(1)])
    document = {"aiperf_version": "0.6.0", "input_config": {}, "request_latency": block(0.4, "sec", p50=0.4)}
    write_json(tmp_path / "in/s.json", document)
    run = one(tmp_path / "in", tmp_path)
    found = run.requests["r0"]
    assert found["first_visible_ns"] - found["dispatched_ns"] == 100 * MS
    assert found["last_visible_ns"] - found["dispatched_ns"] == 400 * MS
    assert run.check("summary_reproduced")[0] == "pass"


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({"request_end_ns": START - 5}, "end_ns"),
        ({"credit_issued_ns": START + 5}, "scheduled_ns"),
        ({"request_start_ns": -7}, "dispatched_ns"),
        ({"request_ack_ns": START - 5}, None),
        ({"time_to_first_token": {"value": -3.0, "unit": "ms"}}, "first_visible_ns"),
        ({"time_to_first_token": {"value": 900.0, "unit": "ms"}}, "last_visible_ns"),
    ],
)
def test_clock_skew(tmp_path: Path, changes: dict[str, Any], lost: str | None) -> None:
    run = one(write_lines(tmp_path / "in/p.jsonl", [record(0, **changes), record(1)]), tmp_path)
    found = run.requests["r0"]
    assert found["status"] == "ok"
    assert TIMES_WRONG in found["flags"]
    assert lost is None or found[lost] is None
    assert run.check("record_times") == ("fail", "1 of 2 records have a time before one that it must follow")


def test_usage_that_is_missing_is_conspicuous(tmp_path: Path) -> None:
    rows = [record(n) for n in range(3)]
    for row in rows[:2]:
        row["metrics"]["usage_completion_tokens"] = {"value": 4, "unit": "tokens"}
    found = one(write_lines(tmp_path / "in/p.jsonl", rows), tmp_path).requests
    assert [found[f"r{n}"]["flags"] for n in range(3)] == [None, None, UNFINISHED]


def test_context_overflow_is_a_rejection(tmp_path: Path) -> None:
    row = failed(0, "ContextOverflow", None)
    row["metadata"]["context_overflow_skip"] = True
    found = one(write_lines(tmp_path / "in/p.jsonl", [row, record(1)]), tmp_path).requests["r0"]
    assert (found["status"], found["error_type"]) == ("rejected", "ContextOverflow")


def test_wrong_types_are_bad_rows_or_unknown(tmp_path: Path) -> None:
    rows: list[Any] = [
        record(0),
        {"metadata": {"x_request_id": "a"}, "metrics": [1]},
        {"metadata": 5, "metrics": {}},
        7,
    ]
    odd = record(4)
    odd["metrics"]["time_to_first_token"] = 100
    odd["metrics"]["inter_chunk_latency"] = {"value": [1, "x"], "unit": "ms"}
    odd["metadata"]["turn_index"] = "first"
    odd["error"] = []
    path = write_lines(tmp_path / "in/p.jsonl", [*rows, odd])
    run = one(path, tmp_path, skip_bad_rows=True)
    assert sorted(run.requests) == ["r0", "r4"]
    assert run.manifest["lineage"]["rows_left_out"] == 3
    assert run.requests["r4"]["first_visible_ns"] == 4 * SECOND + 100 * MS + MS


def test_unfinished_run(tmp_path: Path) -> None:
    write_lines(tmp_path / "in/p.jsonl", [record(0)])
    write_json(tmp_path / "in/.aiperf_results_ready.json", {"ready": True, "was_cancelled": True, "partial": True})
    document = {
        "aiperf_version": "0.13.0",
        "input_config": {},
        "request_count": block(1, "requests"),
        "was_cancelled": True,
        "is_complete": False,
        "incomplete_reason": "interrupted",
    }
    write_json(tmp_path / "in/s.json", document)
    run = one(tmp_path / "in", tmp_path)
    assert run.check("results_ready") == ("fail", "ready is true, was_cancelled is true, partial is true")
    assert run.check("run_complete") == ("fail", "was_cancelled is true, is_complete is false (interrupted)")


def test_summary_that_is_no_json(tmp_path: Path) -> None:
    write_lines(tmp_path / "in/p.jsonl", [record(0)])
    whole = json.dumps({"aiperf_version": "0.6.0", "input_config": {}, "request_count": block(1, "requests")})
    (tmp_path / "in/s.json").write_text(whole[:-3])
    with pytest.raises(GapscopeError, match=r"s\.json is not JSON"):
        imported(tmp_path / "in", tmp_path / "store")


def test_response_without_a_record_is_a_row(tmp_path: Path) -> None:
    write_lines(tmp_path / "in/p.jsonl", [record(0)])
    raw = []
    for number in (0, 1):
        row = record(number)
        del row["metrics"]
        contents = [{"choices": [{"delta": {"content": "a"}}]}, {"choices": [{"delta": {}, "finish_reason": "stop"}]}]
        packets = [
            {"perf_ns": 5_000 + 100 * MS * (place + 1), "packets": [{"name": "data", "value": json.dumps(chunk)}]}
            for place, chunk in enumerate(contents)
        ]
        raw.append(row | {"start_perf_ns": 5_000, "status": 200, "responses": packets})
    write_lines(tmp_path / "in/q.jsonl", raw)
    run = one(tmp_path / "in", tmp_path)
    assert sorted(run.requests) == ["r0", "r1"]
    assert run.requests["r1"]["last_visible_ns"] == SECOND + 100 * MS + MS
    assert run.check("raw_agrees") == (
        "fail",
        "TTFT and latency of 0 of 1 records are those of their chunks; 1 responses have no record",
    )


def test_broken_file_beside_the_records_is_left_out(tmp_path: Path) -> None:
    write_lines(tmp_path / "in/p.jsonl", [record(0)])
    whole = json.dumps({"aiperf_version": "0.6.0", "input_config": {}, "request_count": block(1, "requests")})
    (tmp_path / "in/s.json").write_text(whole[:-3])
    run = one(tmp_path / "in", tmp_path, skip_bad_rows=True)
    assert len(run.requests) == 1
    verdict, detail = run.check("rows_used")
    assert verdict == "fail"
    assert "s.json: left out: s.json is not JSON" in detail


def test_summary_alone_that_is_broken_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"aiperf_version": "0.6.0", "input_config": {}, "request_count": {"unit": "x", "av')
    with pytest.raises(GapscopeError, match=r"s holds no figure that can be read: 1 rows? left out"):
        imported(path, tmp_path / "store", skip_bad_rows=True)
