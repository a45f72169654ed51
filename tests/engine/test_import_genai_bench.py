"""genai-bench results, by hand: two requests with content, an error; the figures follow in the head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from foreign_files import by_id, checks, fact, figures, plan, rows, runs, verdict, write

from engine.errors import GapscopeError

METADATA = {
    "cmd": "genai-bench benchmark",
    "benchmark_version": "0.0.5",
    "api_backend": "openai",
    "api_model_name": "m",
    "server_model_tokenizer": "tok",
    "model": "org/m",
    "task": "text-to-text",
    "num_concurrency": [1, 2],
    "traffic_scenario": ["D(100,5)"],
    "server_engine": "vLLM",
    "server_version": "0.20.1",
    "server_gpu_type": "H100",
    "server_gpu_count": "8",
    "max_time_per_run_s": 60,
    "metrics_time_unit": "s",
}


def request(ttft: float, tpot: float, tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "ttft": ttft,
        "tpot": tpot,
        "e2e_latency": ttft + tpot * (tokens - 1),
        "output_latency": tpot * (tokens - 1),
        "num_input_tokens": 100,
        "num_output_tokens": tokens,
        "total_tokens": 100 + tokens,
        "error_code": None,
        "error_message": None,
        **more,
    }


ERROR = {
    **dict.fromkeys(request(0, 0, 1)),
    "error_code": 429,
    "error_message": "slow down",
}


def result(concurrency: int = 2, scale: float = 1.0, **more: Any) -> dict[str, Any]:
    return {
        "aggregated_metrics": {
            "scenario": "D(100,5)",
            "num_concurrency": concurrency,
            "run_duration": 4.0,
            "requests_per_second": 0.5,
            "mean_output_throughput_tokens_per_s": 2.0,
            "error_codes_frequency": {"429": 1},
            "num_error_requests": 1,
            "num_completed_requests": 2,
            "num_requests": 3,
            "stats": {
                # 0.25 and 0.75 s; 0.125 and 0.25 s a token; 5 and 3 tokens.
                "ttft": {"min": 0.25 * scale, "max": 0.75 * scale, "mean": 0.5 * scale, "stddev": 0.25 * scale},
                "tpot": {"mean": 0.1875 * scale, "p50": 0.1875 * scale, "p90": 0.2375 * scale},
                "e2e_latency": {"sum": 2.0 * scale, "mean": 1.0 * scale},
                "num_output_tokens": {"mean": 4.0},
            },
        },
        "individual_request_metrics": [
            request(0.25 * scale, 0.125 * scale, 5),
            ERROR,
            request(0.75 * scale, 0.25 * scale, 3),
        ],
        "_time_unit": "s" if scale == 1 else "ms",
        **more,
    }


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_rows_in_either_unit(tmp_path: Path, scale: float) -> None:
    (run,) = runs(write(tmp_path / "in", {"a.json": result(scale=scale)}), tmp_path / "store")
    first, error, last = (by_id(run)[name] for name in "123")
    assert (first["first_visible_after_ns"], first["last_visible_after_ns"]) == (250_000_000, 750_000_000)
    assert (last["first_visible_after_ns"], last["last_visible_after_ns"]) == (750_000_000, 1_250_000_000)
    assert [first["output_tokens"], last["output_tokens"]] == [5, 3]
    assert all(row["dispatched_ns"] is None for row in rows(run))
    assert (error["status"], error["error_type"], error["error_message"]) == ("error", "HTTP 429", "slow down")
    assert error["first_visible_after_ns"] is error["output_tokens"] is None
    assert verdict(run, "summary_reproduced") == "pass"
    assert "all 10 figures" in checks(run)["summary_reproduced"][1]
    assert verdict(run, "rows_counted") == "pass"


def test_a_folder_of_concurrencies_with_its_metadata(tmp_path: Path) -> None:
    files = {"one.json": result(1), "two.json": result(2), "experiment_metadata.json": METADATA}
    folder = write(tmp_path / "in", files)
    assert not plan(folder).ignored
    one, two = runs(folder, tmp_path / "store")
    assert [fact(run, "client", "lanes") for run in (one, two)] == [1, 2]
    assert fact(two, "model", "name") == "org/m"
    assert fact(two, "hardware", "part") == "H100"
    assert fact(two, "hardware", "count") == 8
    assert fact(two, "source", "version") == "0.20.1"
    assert two.manifest["lineage"]["tool_version"] == "0.0.5"
    assert two.identity.get("hardware", "part").source == "experiment_metadata.json"


def test_figures_stand_beside_ours(tmp_path: Path) -> None:
    (run,) = runs(write(tmp_path / "in", {"a.json": result()}), tmp_path / "store")
    told = figures(run)
    assert told[("ttft", "std")] == 0.25
    assert told[("requests_per_second", "mean")] == 0.5
    assert told[("errors", "count")] == 1
    assert {(r["name"], r["unit"], r["metric"]) for r in rows(run, "reported") if r["name"] == "tpot"} == {
        ("tpot", "s", "tpot")
    }


def test_dropped_rows_are_unknown_and_not_zero(tmp_path: Path) -> None:
    document = result()
    document["individual_request_metrics"].pop()
    (run,) = runs(write(tmp_path / "in", {"a.json": document}), tmp_path / "store")
    state, detail = checks(run)["rows_counted"]
    assert state == "fail"
    assert detail.startswith("2 rows; the summary says 3 asked")
    assert "is not recorded" in detail
    assert verdict(run, "summary_reproduced") == "fail"


def test_without_rows_it_is_a_summary(tmp_path: Path) -> None:
    (run,) = runs(write(tmp_path / "in", {"a.json": result(individual_request_metrics=[])}), tmp_path / "store")
    assert run.kind == "imported_summary"
    assert run.table("requests") is None


def test_all_failed(tmp_path: Path) -> None:
    (run,) = runs(
        write(tmp_path / "in", {"a.json": result(individual_request_metrics=[ERROR, ERROR])}), tmp_path / "store"
    )
    assert run.ledger is not None
    assert (run.ledger["profile"]["ok"], run.ledger["profile"]["error"]) == (0, 2)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (result(_time_unit="min"), "_time_unit is 'min'"),
        (result(individual_request_metrics={"a": 1}), "no list"),
        (result(individual_request_metrics=["x"]), "expected an object per request"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(tmp_path: Path, document: dict[str, Any], words: str) -> None:
    with pytest.raises(GapscopeError, match=words):
        runs(write(tmp_path / "in", {"a.json": document}), tmp_path / "store")


def test_values_that_are_no_numbers_are_unknown(tmp_path: Path) -> None:
    document = result(individual_request_metrics=[request(0.25, 0.125, 5), request(0.5, 0.25, 3)])
    document["individual_request_metrics"][0] |= {"ttft": float("nan"), "num_output_tokens": "5"}
    (run,) = runs(write(tmp_path / "in", {"a.json": json.dumps(document)}), tmp_path / "store")
    row = by_id(run)["1"]
    assert row["first_visible_after_ns"] is row["output_tokens"] is None
    assert row["flags"] == "output tokens not counted"
