"""What AIPerf's files leave open: records without an outcome, times that are none or in units that nobody knows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from engine.importers.clients.flags import NO_OUTCOME
from engine.importers.clients.units import UnknownUnits
from tests.engine.aiperf_runs import SECOND, Run, failed, imported, record, write_json, write_lines


def one(path: Path, tmp_path: Path) -> Run:
    (run,) = imported(path, tmp_path / "store")
    return run


@pytest.mark.parametrize(
    "metrics", [{}, None, {"input_sequence_length": {"value": 50, "unit": "tokens"}, "requested_osl": {"value": 4}}]
)
def test_a_record_without_figures_or_error_has_no_outcome(tmp_path: Path, metrics: dict[str, Any] | None) -> None:
    rows = [record(0), record(1), failed(2), record(3)]
    rows[1]["metrics"] = metrics
    rows[1]["error"] = None
    run = one(write_lines(tmp_path / "in/profile_export.jsonl", rows), tmp_path)
    row = run.requests["r1"]
    assert (row["status"], row["tool_status"], row["flags"]) == (
        "in_flight",
        "neither figures nor an error",
        NO_OUTCOME,
    )
    assert all(row[name] is None for name in ("first_visible_ns", "last_visible_ns", "output_tokens"))
    ledger = run.manifest["ledger"]["profile"]
    assert {name: ledger[name] for name in ("attempted", "ok", "error", "in_flight")} == {
        "attempted": 4,
        "ok": 2,
        "error": 1,
        "in_flight": 1,
    }
    assert run.check("outcomes_known") == (
        "fail",
        "1 of 4 records have neither figures nor an error, the first in profile_export.jsonl line 2: what became of "
        "these requests is unknown, and they are in no rate and no latency",
    )
    assert run.check("ledger_balances")[0] == "pass"


def test_the_summary_is_held_against_records_with_an_outcome(tmp_path: Path) -> None:
    rows = [record(n) for n in range(3)]
    rows[2]["metrics"] = {}
    write_lines(tmp_path / "in/profile_export.jsonl", rows)
    summary = {"request_count": {"unit": "requests", "avg": 2}, "aiperf_version": "0.6.0", "input_config": {}}
    write_json(tmp_path / "in/profile_export_aiperf.json", summary)
    run = one(tmp_path / "in", tmp_path)
    verdict, detail = run.check("requests_accounted")
    assert verdict == "pass"
    assert detail.startswith("2 records without error and 0 with one, 1 with neither figures nor an error;")
    assert run.check("summary_reproduced")[0] == "pass"


def test_a_time_in_an_unknown_unit_is_named(tmp_path: Path) -> None:
    rows = [record(n) for n in range(4)]
    for row in rows[1:3]:
        row["metrics"]["request_latency"] = {"value": 1.0, "unit": "fortnights"}
    rows[3]["metrics"]["time_to_first_token"] = {"value": 0.1, "unit": "sec"}
    run = one(write_lines(tmp_path / "in/profile_export.jsonl", rows), tmp_path)
    assert run.check("units_known") == (
        "fail",
        "no unit of time, so that nothing is computed from them: request_latency in 'fortnights', 2 times, first in "
        "profile_export.jsonl line 2",
    )
    found = run.requests
    assert [found[f"r{n}"]["last_visible_ns"] is None for n in range(4)] == [False, True, True, False]
    assert found["r3"]["first_visible_ns"] - found["r3"]["dispatched_ns"] == SECOND // 10


def test_the_summary_can_have_one_too(tmp_path: Path) -> None:
    write_lines(tmp_path / "in/profile_export.jsonl", [record(n) for n in range(2)])
    summary = {"time_to_first_token": {"unit": "moons", "avg": 2}, "aiperf_version": "0.6.0", "input_config": {}}
    write_json(tmp_path / "in/profile_export_aiperf.json", summary)
    verdict, detail = one(tmp_path / "in", tmp_path).check("units_known")
    assert verdict == "fail"
    assert "time_to_first_token in 'moons', 1 time, first in profile_export_aiperf.json" in detail


def test_known_units_pass(tmp_path: Path) -> None:
    run = one(write_lines(tmp_path / "in/profile_export.jsonl", [record(0), failed(1)]), tmp_path)
    assert run.check("units_known") == ("pass", "every time is in a unit that is known")
    assert "outcomes_known" not in [check["check"] for check in run.manifest["qualification"]]
    assert UnknownUnits().check().verdict == "pass"


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e30, None, "abc", -4.0])
@pytest.mark.parametrize("tag", ["request_latency", "time_to_first_token"])
def test_a_time_that_is_none_is_counted_and_named(tmp_path: Path, tag: str, value: Any) -> None:
    rows = [record(n) for n in range(4)]
    for row in rows[1:3]:
        row["metrics"][tag] = {"value": value, "unit": "ms"}
    run = one(write_lines(tmp_path / "in/profile_export.jsonl", rows), tmp_path)
    assert run.check("times_usable") == (
        "fail",
        f"left out, as they are no number, negative, infinite or too large: {tag} of 2 requests (the first is "
        f"{value!r} in profile_export.jsonl line 2)",
    )
    column = "last_visible_ns" if tag == "request_latency" else "first_visible_ns"
    assert [run.requests[f"r{n}"][column] is None for n in range(4)] == [False, True, True, False]


@pytest.mark.parametrize("gap", [math.inf, math.nan, -50.0, None, "abc", 1e30])
def test_gaps_that_are_none_are_counted_and_have_no_chunks(tmp_path: Path, gap: Any) -> None:
    rows = [record(n) for n in range(3)]
    rows[1]["metrics"]["inter_chunk_latency"] = {"value": [100.0, gap, 100.0], "unit": "ms"}
    rows[2]["metrics"]["inter_chunk_latency"] = {"value": [9e11, 9e11, 9e11], "unit": "ms"}  # each one is a time
    run = one(write_lines(tmp_path / "in/profile_export.jsonl", rows), tmp_path)
    verdict, detail = run.check("times_usable")
    assert verdict == "fail"
    assert detail.endswith(f"inter_chunk_latency of 2 requests (the first is {gap!r} in profile_export.jsonl line 2)")
    assert {chunk["request_id"] for chunk in run.table("chunks")} == {"r0"}


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e30, "abc", -4])
def test_a_moment_that_is_none_is_counted_and_named(tmp_path: Path, value: Any) -> None:
    rows = [record(n) for n in range(2)]
    rows[1]["metadata"]["request_end_ns"] = value
    run = one(write_lines(tmp_path / "in/profile_export.jsonl", rows), tmp_path)
    verdict, detail = run.check("times_usable")
    assert verdict == "fail"
    assert detail.endswith(f"request_end_ns of 1 request (the first is {value!r} in profile_export.jsonl line 2)")
    assert (run.requests["r0"]["end_ns"] is None, run.requests["r1"]["end_ns"]) == (False, None)


def test_the_recount_leaves_out_what_the_rows_do(tmp_path: Path) -> None:
    rows = [record(n) for n in range(4)]
    rows[3]["metrics"]["request_latency"] = {"value": 1e30, "unit": "ms"}
    rows[3]["metrics"]["time_to_second_token"] = {"value": math.inf, "unit": "ms"}
    write_lines(tmp_path / "in/profile_export.jsonl", rows)
    summary = {"request_latency": {"unit": "ms", "avg": 410.0, "max": 400.0}, "aiperf_version": "0.6.0"}
    write_json(tmp_path / "in/profile_export_aiperf.json", summary | {"input_config": {}})
    run = one(tmp_path / "in", tmp_path)
    verdict, detail = run.check("summary_reproduced")
    assert verdict == "fail"
    assert "request_latency avg 410, from rows 400." in detail  # the mean of three latencies of 400 ms
    verdict, detail = run.check("times_usable")
    assert "request_latency of 1 request (the first is 1e+30 in" in detail
    assert "time_to_second_token of 1 request (the first is inf in" in detail


def test_times_of_a_sound_run_are_usable(tmp_path: Path) -> None:
    rows = [record(0), failed(1)]
    rows[1]["metadata"]["request_ack_ns"] = None  # nothing came
    run = one(write_lines(tmp_path / "in/profile_export.jsonl", rows), tmp_path)
    assert run.check("times_usable") == ("pass", "every time is a finite number of seconds of 0 or more")
