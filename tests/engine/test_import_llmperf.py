"""llmperf: responses without times of day and a summary with flat keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from foreign_files import by_id, checks, fact, figures, plan, rows, runs, verdict, write

from engine.errors import GapscopeError


def response(ttft: float, latency: float, tokens: int, code: int | None = None) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_msg": "" if code is None else "overloaded",
        "inter_token_latency_s": latency / tokens if tokens else 0,
        "ttft_s": ttft,
        "end_to_end_latency_s": latency,
        "request_output_throughput_token_per_s": tokens / latency if latency else 0,
        "number_total_tokens": tokens + 550,
        "number_output_tokens": tokens,
        "number_input_tokens": 550,
    }


RESPONSES = [response(0.5, 2.5, 10), response(0.7, 4.7, 20), response(0.0, 0.0, 0, 429)]
# Two completed in 10 s: 12 a minute, and 30 tokens in 10 s. The deviation of 0.5 and 0.7 is that of a sample.
SUMMARY: dict[str, Any] = {
    "version": "2023-08-31",
    "name": "m_summary",
    "model": "org/m",
    "mean_input_tokens": 550,
    "mean_output_tokens": 150,
    "num_concurrent_requests": 2,
    "results_inter_token_latency_s_mean": 0.2425,
    "results_ttft_s_quantiles_p50": 0.6,
    "results_ttft_s_quantiles_p99": 0.698,
    "results_ttft_s_mean": 0.6,
    "results_ttft_s_min": 0.5,
    "results_ttft_s_max": 0.7,
    "results_ttft_s_stddev": 0.02**0.5,
    "results_end_to_end_latency_s_mean": 3.6,
    "results_number_input_tokens_min": "550",
    "results_number_output_tokens_mean": 15.0,
    "results_number_output_tokens_max": "20",
    "results_num_requests_started": 3,
    "results_num_completed_requests": 2,
    "results_number_errors": 1,
    "results_error_code_frequency": "{429: 1}",
    "results_num_completed_requests_per_min": 12.0,
    "results_mean_output_throughput_token_per_s": 3.0,
}


def test_responses_and_summary(tmp_path: Path) -> None:
    files = {"m_individual_responses.json": RESPONSES, "m_summary.json": SUMMARY}
    folder = write(tmp_path / "in", files)
    (part,) = plan(folder).parts
    assert (part.kind, [use.what for use in part.uses]) == ("measured", ["a row per response", "the summary"])
    (run,) = runs(folder, tmp_path / "store")
    first, failed = by_id(run)["0"], by_id(run)["2"]
    assert (first["first_visible_after_ns"], first["end_after_ns"]) == (5 * 10**8, 2_500_000_000)
    assert (first["dispatched_ns"], first["output_tokens"]) == (None, 10)
    assert (failed["status"], failed["error_type"], failed["error_message"]) == ("error", "429", "overloaded")
    assert failed["first_visible_after_ns"] is None
    assert checks(run)["summary_reproduced"][1].startswith("all 12 figures")
    assert verdict(run, "rows_counted") == "pass"
    told = figures(run)
    assert told["number_input_tokens", "min"] == 550
    assert told["ttft_s", "p99"] == 0.698
    assert told["num_completed_requests_per_min", "value"] == 12.0
    assert [phase["end_ns"] for phase in run.manifest["phases"]] == [10 * 10**9]
    assert fact(run, "client", "lanes") == 2
    assert fact(run, "definitions", "end_of_latency") == "end of the response"


def test_its_inter_token_latency_has_the_first_token_inside(tmp_path: Path) -> None:
    (run,) = runs(write(tmp_path / "in", {"r.json": RESPONSES, "s.json": SUMMARY}), tmp_path / "store")
    named = {row["name"]: row for row in rows(run, "reported")}
    assert "the first token inside" in named["inter_token_latency_s"]["definition"]


def test_several_points_of_one_folder_are_told_by_name(tmp_path: Path) -> None:
    files = {
        "a_individual_responses.json": RESPONSES,
        "a_summary.json": SUMMARY,
        "b_individual_responses.json": RESPONSES[:1],
        "c_summary.json": SUMMARY,
    }
    parts = plan(write(tmp_path / "in", files)).parts
    assert [(part.name, part.kind, len(part.uses)) for part in parts] == [
        ("a", "measured", 2),
        ("b", "measured", 1),
        ("c", "imported_summary", 1),
    ]


def test_lost_requests_are_counted(tmp_path: Path) -> None:
    files = {"r.json": RESPONSES, "s.json": {**SUMMARY, "results_num_requests_started": 4}}
    (run,) = runs(write(tmp_path / "in", files), tmp_path / "store")
    assert verdict(run, "rows_counted") == "fail"


def test_all_failed(tmp_path: Path) -> None:
    (run,) = runs(write(tmp_path / "in", {"r.json": [RESPONSES[2]] * 3}), tmp_path / "store")
    assert {row["status"] for row in rows(run)} == {"error"}


def test_an_answer_without_text(tmp_path: Path) -> None:
    (run,) = runs(write(tmp_path / "in", {"r.json": [response(0.0, 1.5, 0)]}), tmp_path / "store")
    row = by_id(run)["0"]
    assert (row["status"], row["flags"], row["output_tokens"]) == ("ok", "zero output", 0)
    assert (row["first_visible_after_ns"], row["last_visible_after_ns"]) == (None, None)


def test_numbers_that_are_none(tmp_path: Path) -> None:
    odd = {**response(0.5, 2.5, 10), "ttft_s": float("nan"), "number_output_tokens": "ten"}
    (run,) = runs(write(tmp_path / "in", {"r.json": json.dumps([odd])}), tmp_path / "store")
    row = by_id(run)["0"]
    assert (row["flags"], row["output_tokens"], row["first_visible_after_ns"]) == (
        "output tokens not counted",
        None,
        None,
    )


def test_rows_that_are_none(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"r.json": [*RESPONSES, 7]})
    with pytest.raises(GapscopeError, match=r"r.json response 4: expected an object"):
        runs(folder, tmp_path / "store")
    (run,) = runs(folder, tmp_path / "store", skip_bad_rows=True)
    assert len(rows(run)) == 3
