"""inference-perf: rows, stages and summaries of three requests that are short enough to compute by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from foreign_files import by_id, checks, figures, plan, rows, runs, verdict, write

from engine.errors import GapscopeError


def request(start: float, times: list[float], tokens: int | None = None, **values: Any) -> dict[str, Any]:
    return {
        "start_time": start,
        "end_time": values.pop("end", (times[-1] if times else start) + 0.1),
        "request": '{"prompt": "x"}',
        "response": "data",
        "info": {
            "request_metrics": {"text": {"input_tokens": 10}},
            "response_metrics": {"output_tokens": len(times) if tokens is None else tokens, "output_token_times": times}
            | values.pop("response", {}),
        },
        "error": None,
        **values,
    }


# Latencies 1.1, 2.1 and 0.6 s; TTFT 0.5, 1.0, 0.5; TPOT 0.25, 0.5 and none; gaps 0.2, 0.3, 0.5, 0.5.
REQUESTS = [
    request(100.0, [100.5, 100.7, 101.0]),
    request(100.5, [101.5, 102.0, 102.5]),
    request(101.0, [101.5]),
    {
        "start_time": 102.0,
        "end_time": 102.25,
        "request": "x",
        "response": None,
        "info": {"request_metrics": {"text": {"input_tokens": 10}}},
        "error": {"error_type": "TimeoutError", "error_msg": "too late"},
    },
]


def summary(**successes: Any) -> dict[str, Any]:
    return {
        "benchmark_time_seconds": 2.6,
        "load_summary": {"count": 4},
        "successes": {
            "count": 3,
            "latency": {
                "request_latency": {"mean": 3.8 / 3, "min": 0.6, "median": 1.1, "p90": 1.9, "max": 2.1},
                "time_to_first_token": {"mean": 2.0 / 3, "p99": 0.99},
                "time_per_output_token": {"mean": 0.375, "median": 0.375, "p0.1": 0.25025},
                "inter_token_latency": {"mean": 0.375, "median": 0.4},
                "normalized_time_per_output_token": {"min": 1.1 / 3, "max": 0.7},
            },
            "throughput": {"requests_per_sec": 3 / 2.6, "output_tokens_per_sec": 7 / 2.6},
            "prompt_len": {"mean": 10.0},
            "output_len": {"mean": 7 / 3, "max": 3},
            **successes,
        },
        "failures": {"count": 1, "request_latency": {"mean": 0.25}, "prompt_len": None},
    }


def test_rows_and_their_summary(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"per_request.json": REQUESTS, "summary.json": summary()})
    (part,) = plan(folder).parts
    assert (part.kind, len(part.uses)) == ("measured", 2)
    (run,) = runs(folder, tmp_path / "store")
    first, second, third, failed = (by_id(run)[str(place)] for place in range(4))
    assert (first["dispatched_ns"], first["first_visible_ns"], first["last_visible_ns"]) == (0, 5 * 10**8, 10**9)
    assert (second["dispatched_ns"], second["end_ns"]) == (5 * 10**8, 2_600_000_000)
    assert (third["output_tokens"], third["flags"]) == (1, None)
    assert (failed["status"], failed["error_type"], failed["error_message"]) == ("error", "TimeoutError", "too late")
    assert failed["first_visible_ns"] is None
    assert failed["output_tokens"] is None
    chunks = [row["time_ns"] for row in rows(run, "chunks") if row["request_id"] == "0"]
    assert chunks == [5 * 10**8, 7 * 10**8, 10**9]
    assert verdict(run, "summary_reproduced") == "pass", checks(run)["summary_reproduced"]
    assert checks(run)["summary_reproduced"][1].startswith("all 17 figures")
    assert verdict(run, "rows_counted") == "pass"
    told = {(r["name"], r["statistic"]): (r["unit"], r["metric"]) for r in rows(run, "reported")}
    assert told["request_latency", "p50"] == ("s", "e2e")
    assert told["inter_token_latency", "mean"] == ("s", "chunk_gap")
    assert told["requests_per_sec", "value"] == ("req/s", "request_rate")


def test_a_summary_that_counts_one_more_than_the_rows(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"rows.json": REQUESTS, "summary.json": summary(count=4)})
    (run,) = runs(folder, tmp_path / "store")
    assert checks(run)["rows_counted"] == (
        "fail",
        "summary.json counts 4 successes and 1 failures, the rows hold 3 and 1",
    )


def test_a_summary_of_other_rows(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"rows.json": REQUESTS[1:], "summary.json": summary(count=2)})
    (run,) = runs(folder, tmp_path / "store")
    assert verdict(run, "summary_reproduced") == "fail"


def test_stages_are_slices_of_the_run(tmp_path: Path) -> None:
    stage = {**summary(), "load_summary": {"count": 4, "requested_rate": 2.0, "achieved_rate": 1.9}}
    files = {
        "per_request_lifecycle_metrics.json": REQUESTS,
        "summary_lifecycle_metrics.json": summary(),
        "stage_0_lifecycle_metrics.json": stage,
        "stage_1_lifecycle_metrics.json": stage,
    }
    (run,) = runs(write(tmp_path / "in", files), tmp_path / "store")
    stages = {row["labels"] for row in rows(run, "reported") if row["scope"] == "slice"}
    assert stages == {"stage 0", "stage 1"}
    assert figures(run)["request_latency", "min"] == 0.6
    assert figures(run, "slice")["achieved_rate", "value"] == 1.9


def test_summaries_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"summary.json": summary()})
    (part,) = plan(folder).parts
    assert part.kind == "imported_summary"
    (run,) = runs(folder, tmp_path / "store")
    assert run.table("requests") is None
    assert figures(run)["time_to_first_token", "p99"] == 0.99
    assert "summary_reproduced" not in checks(run)


def test_a_request_that_ends_without_content(tmp_path: Path) -> None:
    (run,) = runs(write(tmp_path / "in", {"rows.json": [request(1.0, []), request(2.0, [2.5], 4)]}), tmp_path / "store")
    empty, burst = by_id(run)["0"], by_id(run)["1"]
    assert (empty["status"], empty["output_tokens"], empty["flags"]) == ("ok", 0, "zero output")
    assert (empty["first_visible_ns"], empty["last_visible_ns"]) == (None, None)
    assert burst["flags"] == "several tokens a chunk"
    assert [row["tokens"] for row in rows(run, "chunks")] == [None]


def test_the_server_counts_otherwise(tmp_path: Path) -> None:
    usage = {"server_usage": {"completion_tokens": 5}}
    files = {"rows.json": [request(1.0, [1.5, 1.6], response=usage), request(2.0, [2.5] * 5, response=usage)]}
    (run,) = runs(write(tmp_path / "in", files), tmp_path / "store")
    assert checks(run)["token_counts_agree"] == (
        "fail",
        "the client's count of output tokens is not the server's in 1 of 2 requests",
    )


def test_the_first_layout_has_its_counts_in_info(tmp_path: Path) -> None:
    old = request(1.0, [1.5, 1.6])
    old["info"] = {"input_tokens": 7, "output_tokens": 2, "output_token_times": [1.5, 1.6]}
    (run,) = runs(write(tmp_path / "in", {"rows.json": [old]}), tmp_path / "store")
    assert (by_id(run)["0"]["input_tokens"], by_id(run)["0"]["output_tokens"]) == (7, 2)


def test_times_out_of_order_are_null(tmp_path: Path) -> None:
    (run,) = runs(write(tmp_path / "in", {"rows.json": [request(5.0, [4.0, 5.5], end=6.0)]}), tmp_path / "store")
    row = by_id(run)["0"]
    assert (row["flags"], row["first_visible_ns"], row["last_visible_ns"]) == ("times out of order", None, None)
    assert row["end_ns"] == 10**9


def test_all_failed(tmp_path: Path) -> None:
    (run,) = runs(write(tmp_path / "in", {"rows.json": [REQUESTS[3]] * 2}), tmp_path / "store")
    assert [row["status"] for row in rows(run)] == ["error", "error"]


def test_no_rows_at_all(tmp_path: Path) -> None:
    nothing = {**summary(count=0, latency={}, throughput={}), "failures": {"count": 0}}
    (run,) = runs(write(tmp_path / "in", {"summary.json": nothing}), tmp_path / "store")
    assert verdict(run, "units_plausible") == "unknown"


@pytest.mark.parametrize("start", ["soon", None, float("nan"), [1.0], 1e300])
def test_a_row_without_a_start_is_bad(tmp_path: Path, start: Any) -> None:
    files = {"rows.json": json.dumps([REQUESTS[0], {**REQUESTS[0], "start_time": start}])}
    folder = write(tmp_path / "in", files)
    with pytest.raises(GapscopeError, match=r"rows.json request 2: no start_time in seconds"):
        runs(folder, tmp_path / "store")
    (run,) = runs(folder, tmp_path / "store", skip_bad_rows=True)
    assert verdict(run, "rows_used") == "fail"
    assert len(rows(run)) == 1


def test_milliseconds_under_the_name_of_seconds(tmp_path: Path) -> None:
    """0.003 for a request of 32 tokens: the unit is another."""
    block = {"request_latency": {"mean": 0.003}, "time_to_first_token": {"mean": 0.001}}
    files = {"summary.json": summary(latency=block, output_len={"mean": 32.0})}
    (run,) = runs(write(tmp_path / "in", files), tmp_path / "store")
    assert verdict(run, "units_plausible") == "fail"
