"""GuideLLM against a stub server of which it is known what it did, and reports of other generations by hand.

By arrival number modulo 20 the stub answered: 0 two tokens in the first chunk, 3 twelve tokens of reasoning and twelve
of text, 5 HTTP 500, 7 nothing, 9 one token, 11 three tokens a chunk, 13 an error object after 12 tokens, 17 HTTP 429,
else a token a chunk; 24 were asked for, from at most 4 at once, for 8 seconds.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_files import by_id, checks, fact, plan, rows, runs, verdict, write

from engine.bundle import Bundle
from engine.errors import GapscopeError

DATA = Path(__file__).parents[1] / "data" / "guidellm"
REPORT = json.loads(gzip.decompress((DATA / "out_guide.json.gz").read_bytes()))
BENCHMARK = REPORT["benchmarks"][0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    (bundle,) = runs(DATA, tmp_path_factory.mktemp("guidellm"))
    return bundle


def told(bundle: Bundle) -> dict[tuple[str, str, str | None], dict[str, Any]]:
    return {(r["name"], r["statistic"], r["labels"]): r for r in rows(bundle, "reported")}


def test_the_other_outputs_of_the_run_are_ignored() -> None:
    (part,) = plan(DATA).parts
    assert (part.tool, part.version, part.kind) == ("GuideLLM", "0.8.1", "measured")
    assert {name for name, _ in part.ignores} == {"out_guide.csv.gz", "out_guide.html.gz"}


def test_outcomes(run: Bundle) -> None:
    # GuideLLM: 51 successful, 15 errored of which 4 are answers without content, 4 cut off by the time limit.
    assert run.ledger is not None
    counts = {k: run.ledger["profile"][k] for k in ("attempted", "ok", "error", "canceled")}
    assert counts == {"attempted": 70, "ok": 55, "error": 11, "canceled": 4}
    assert verdict(run, "rows_counted") == "pass"
    assert "created 74, 8 of them cancelled: 4 have no row" in checks(run)["rows_counted"][1]


def test_refused_requests_have_no_latency(run: Bundle) -> None:
    refused = [r for r in rows(run) if r["error_type"] == "HTTPStatusError"]
    assert Counter("429" in r["error_message"] for r in refused) == {False: 4, True: 3}
    for row in refused:
        assert row["status"] == "error"
        assert row["first_visible_ns"] is row["last_visible_ns"] is row["output_tokens"] is None


def test_failed_requests_end_when_their_response_did(run: Bundle) -> None:
    found, start = by_id(run), BENCHMARK["scheduler_metrics"]["measure_start_time"]
    for given in BENCHMARK["requests"]["errored"]:
        end_ns = (given["request_end_time"] - start) * 1e9
        assert found[given["request_id"]]["end_ns"] == pytest.approx(end_ns, abs=500)
    # The mean in flight over the window of 8 s, which the report states over all outcomes.
    open_ns = sum(min(r["end_ns"], 8_000_000_000) - max(r["dispatched_ns"], 0) for r in rows(run))
    stated = BENCHMARK["metrics"]["request_concurrency"]["total"]["mean"]
    assert round(stated, 2) == 3.85
    assert open_ns / 8e9 == pytest.approx(stated, abs=1e-6)


def test_an_answer_without_content_is_no_error(run: Bundle) -> None:
    empty = [r for r in rows(run) if r["flags"] == "zero output"]
    assert len(empty) == 4
    for row in empty:
        assert (row["status"], row["tool_status"], row["output_tokens"]) == ("ok", "errored", 0)
        assert "UNUSABLE_BACKEND_RESPONSE" in row["error_message"]
        assert row["first_visible_ns"] is row["last_visible_ns"] is None


def test_an_error_inside_the_stream_is_an_error(run: Bundle) -> None:
    broken = [r for r in rows(run) if r["flags"] == "unfinished stream"]
    assert len(broken) == 4
    for row in broken:
        assert (row["status"], row["output_tokens"]) == ("error", 12)
        assert "engine died" in row["error_message"]
        assert row["first_visible_ns"] is row["last_visible_ns"] is None


def test_one_token_has_a_ttft_and_no_tpot(run: Bundle) -> None:
    single = [r for r in rows(run) if r["status"] == "ok" and r["output_tokens"] == 1]
    assert len(single) == 4
    assert all(r["first_visible_ns"] == r["last_visible_ns"] and r["first_visible_ns"] is not None for r in single)
    ttft = [r for r in rows(run) if r["status"] == "ok" and r["first_visible_ns"] is not None]
    assert (len(ttft), sum(r["output_tokens"] > 1 for r in ttft)) == (51, 47)


def test_chunks_of_several_tokens_are_flagged(run: Bundle) -> None:
    # 8 chunks of 3 tokens (4 requests), 23 chunks with 2 tokens in the first (3 requests).
    given = {q["request_id"]: q["info"]["timings"]["token_iterations"] for q in BENCHMARK["requests"]["successful"]}
    burst = [r for r in rows(run) if r["flags"] == "several tokens a chunk"]
    assert Counter(given[r["request_id"]] for r in burst) == {8: 4, 23: 3}
    for row in (r for r in burst if given[r["request_id"]] == 8):
        per_token_ms = (row["last_visible_ns"] - row["first_visible_ns"]) / 23 / 1e6
        assert 2.5 < per_token_ms < 3.2


def test_reasoning_and_text_are_two_series(run: Bundle) -> None:
    apart = [r for r in rows(run) if r["status"] == "ok" and r["first_output_ns"] not in (None, r["first_visible_ns"])]
    assert len(apart) == 3
    assert all(0.09e9 < r["first_output_ns"] - r["first_visible_ns"] < 0.15e9 for r in apart)


def test_never_more_than_four_in_flight(run: Bundle) -> None:
    moments = [(r["dispatched_ns"], 1) for r in rows(run)] + [
        (r["end_ns"] or r["dispatched_ns"], -1) for r in rows(run)
    ]
    level = np.cumsum([step for _, step in sorted(moments)])
    assert level.max() == 4
    assert checks(run)["concurrency_capped"] == ("pass", "at most 4 in flight where 4 are allowed; the report says 4")


def test_requests_cut_off_by_the_time_limit(run: Bundle) -> None:
    cut = [r for r in rows(run) if r["status"] == "canceled"]
    assert sorted(r["output_tokens"] for r in cut) == [1, 13, 21, 21]
    assert all(r["tool_status"] == "cancelled" and r["first_visible_ns"] is not None for r in cut)


def test_empty_prompts_are_said(run: Bundle) -> None:
    # The prompts of this recording went out empty, and the server counted 0 tokens.
    assert verdict(run, "prompts_counted") == "fail"
    assert {r["input_tokens"] for r in rows(run) if r["tool_status"] == "completed"} == {0}


def test_times_are_those_of_the_report(run: Bundle) -> None:
    found, start = by_id(run), BENCHMARK["scheduler_metrics"]["measure_start_time"]
    for given in BENCHMARK["requests"]["successful"]:
        row, at = found[given["request_id"]], given["info"]["timings"]
        for column, name in (("dispatched_ns", "request_start"), ("last_visible_ns", "last_token_iteration")):
            assert row[column] == pytest.approx((at[name] - start) * 1e9, abs=500)
        ttft_ms = (row["first_visible_ns"] - row["dispatched_ns"]) / 1e6
        assert ttft_ms == pytest.approx(given["time_to_first_token_ms"], abs=1e-3)
        assert row["requested_output_tokens"] == 24
    assert run.manifest["phases"][0] == {"name": "profile", "start_ns": 0, "end_ns": 8_000_000_000}


def test_figures_follow_by_the_tools_own_rules(run: Bundle) -> None:
    state, detail = checks(run)["summary_reproduced"]
    assert state == "pass"
    assert detail.startswith("all 119 figures")


def test_a_wrong_figure_is_named(tmp_path: Path) -> None:
    report = json.loads(json.dumps(REPORT))
    report["benchmarks"][0]["metrics"]["inter_token_latency_ms"]["successful"]["percentiles"]["p99"] = 1.0
    (found,) = runs(write(tmp_path / "in", {"r.json": report}), tmp_path / "store")
    state, detail = checks(found)["summary_reproduced"]
    assert state == "fail"
    assert "118 of 119" in detail
    assert "inter_token_latency_ms p99 1" in detail


def test_token_weighted_figures_are_not_ours(run: Bundle) -> None:
    # By hand: weighted by tokens, a mean of quotients is the sum above over the sum below.
    good = [r for r in rows(run) if r["status"] == "ok" and (r["output_tokens"] or 0) > 1]
    spans = np.array([r["last_visible_ns"] - r["first_visible_ns"] for r in good]) / 1e6
    gaps = np.array([r["output_tokens"] - 1 for r in good])
    figure = told(run)[("inter_token_latency_ms", "mean", None)]
    assert figure["value"] == pytest.approx(spans.sum() / gaps.sum(), rel=1e-6)
    assert (figure["n"], figure["metric"]) == (gaps.sum(), "tpot") == (1081, "tpot")
    assert "weighted by output tokens - 1" in figure["definition"]
    every = [r for r in rows(run) if r["status"] == "ok" and r["output_tokens"]]
    waits = np.array([r["last_visible_ns"] - r["dispatched_ns"] for r in every]) / 1e6
    tokens = np.array([r["output_tokens"] for r in every])
    per_token = told(run)[("time_per_output_token_ms", "mean", None)]
    assert per_token["value"] == pytest.approx(waits.sum() / tokens.sum(), rel=1e-6)
    assert (waits / tokens).mean() - per_token["value"] > 2.5  # one-token requests weigh as much as others
    assert per_token["metric"] is None
    rate = told(run)[("output_tokens_per_second", "mean", None)]
    assert (rate["value"], rate["metric"]) == (1132 / 8, "output_rate")
    assert told(run)[("output_tokens_per_second", "p50", None)]["metric"] is None
    assert told(run)[("time_to_first_token_ms", "mean", "errored")]["metric"] is None


def test_identity(run: Bundle) -> None:
    assert fact(run, "model", "name") == "mock"
    assert fact(run, "tokenizer", "name") == "bench/tok"
    assert fact(run, "client", "lanes") == 4
    assert fact(run, "definitions", "first_token") == "first chunk with content of any kind, reasoning included"


def test_a_table_alone_is_a_summary(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    shutil.copy(DATA / "out_guide.csv.gz", tmp_path / "in" / "t.csv.gz")
    (found,) = runs(tmp_path / "in", tmp_path / "store")
    assert found.kind == "imported_summary"
    assert found.table("requests") is None
    metrics = BENCHMARK["metrics"]
    for name in ("request_latency", "time_to_first_token_ms", "inter_token_latency_ms", "output_tokens_per_second"):
        block = metrics[name]["successful"]
        assert told(found)[(name, "mean", None)]["value"] == pytest.approx(block["mean"])
        for word, value in {**block["percentiles"], "min": block["min"], "max": block["max"]}.items():
            ours = {"p001": "p0.1", "p01": "p1", "p05": "p5"}.get(word, word)
            if word != "p999":  # the table has the maximum in its place
                assert told(found)[(name, ours, None)]["value"] == pytest.approx(value)
    assert verdict(found, "rows_counted") == "pass"
    assert "nearest rank" in fact(found, "definitions", "percentiles")


def test_a_page_alone_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    shutil.copy(DATA / "out_guide.html.gz", tmp_path / "in" / "p.html.gz")
    with pytest.raises(GapscopeError, match=r"in HTML; .*give the JSON"):
        runs(tmp_path / "in", tmp_path / "store")
    write(tmp_path / "yaml", {"r.yaml": "metadata:\n  guidellm_version: 0.8.1\nbenchmarks: []\n"})
    with pytest.raises(GapscopeError, match=r"in YAML; .*give the JSON"):
        runs(tmp_path / "yaml", tmp_path / "store")


def test_a_report_without_requests_is_a_summary(tmp_path: Path) -> None:
    report = json.loads(json.dumps(REPORT))
    report["benchmarks"][0]["requests"] = None
    (found,) = runs(write(tmp_path / "in", {"r.json": report}), tmp_path / "store")
    assert found.kind == "imported_summary"
    assert told(found)[("time_to_first_token_ms", "p50", None)]["value"] == pytest.approx(34.0876579284668)


def test_a_sample_of_the_requests_is_said(tmp_path: Path) -> None:
    report = json.loads(json.dumps(REPORT))
    benchmark = report["benchmarks"][0]
    benchmark["config"]["sample_size"] = 10
    benchmark["requests"]["successful"] = benchmark["requests"]["successful"][:10]
    (found,) = runs(write(tmp_path / "in", {"r.json": report}), tmp_path / "store")
    state, detail = checks(found)["rows_counted"]
    assert state == "fail"
    assert "rows: 10 successful" in detail
    assert "states 51 successful" in detail
    assert "sample_size 10" in detail


def old_request(number: int, start: float, tokens: int) -> dict[str, Any]:
    return {
        "type_": "generative_text_response",
        "request_id": f"r{number}",
        "request_type": "text_completions",
        "scheduler_info": {"requested": True, "completed": True, "targeted_start_time": start - 0.01},
        "prompt": "p",
        "output": "o",
        "prompt_tokens": 50,
        "output_tokens": tokens,
        "start_time": start,
        "first_token_time": start + 0.25,
        "last_token_time": start + 0.25 + 0.125 * (tokens - 1),
        "end_time": start + 2.0,
    }


def old_benchmark(start: float) -> dict[str, Any]:
    return {
        "type_": "generative_benchmark",
        "run_id": "u",
        "args": {"strategy": {"type_": "constant", "rate": 2.0}},
        "worker": {"backend_type": "openai_http", "backend_model": "m"},
        "start_time": start,
        "end_time": start + 4.0,
        "duration": 4.0,
        "metrics": {
            "time_to_first_token_ms": {"successful": {"mean": 250.0, "median": 250.0, "count": 2, "percentiles": {}}},
            "inter_token_latency_ms": {"successful": {"mean": 125.0, "count": 4}},
        },
        "requests": {
            "successful": [old_request(1, start, 5), old_request(2, start + 1, 1)],
            "incomplete": [],
            "errored": [{**old_request(3, start + 2, 0), "error": "Timeout: 5 s", "first_token_time": None}],
        },
    }


def test_reports_of_the_first_generations(tmp_path: Path) -> None:
    report = {"benchmarks": [old_benchmark(1.7e9), old_benchmark(1.7e9 + 60)]}
    folder = write(tmp_path / "in", {"r.json": report})
    assert [part.name for part in plan(folder).parts] == ["r-1", "r-2"]
    first, second = runs(folder, tmp_path / "store")
    for found in (first, second):
        row = by_id(found)["r1"]
        names = ("scheduled_ns", "dispatched_ns", "first_visible_ns", "last_visible_ns", "end_ns")
        assert [row[n] / 1e9 for n in names] == pytest.approx([-0.01, 0, 0.25, 0.75, 2.0], abs=1e-6)
        assert by_id(found)["r2"]["output_tokens"] == 1
        assert (by_id(found)["r3"]["status"], by_id(found)["r3"]["error_type"]) == ("error", "Timeout")
        assert verdict(found, "summary_reproduced") == "pass"
        assert verdict(found, "rows_counted") == "unknown"
        assert found.manifest["phases"] == [{"name": "profile", "start_ns": 0, "end_ns": 4_000_000_000}]


def test_requests_before_the_measured_window_are_warmup(tmp_path: Path) -> None:
    benchmark = old_benchmark(1.7e9)
    benchmark["scheduler_metrics"] = {"measure_start_time": 1.7e9 + 0.5, "measure_end_time": 1.7e9 + 2.5}
    benchmark |= {"warmup_duration": 0.5, "cooldown_duration": 1.5}
    report = {"metadata": {"guidellm_version": "0.5.0"}, "args": {"processor": "tok"}, "benchmarks": [benchmark]}
    (found,) = runs(write(tmp_path / "in", {"r.json": report}), tmp_path / "store")
    assert found.manifest["lineage"]["tool_version"] == "0.5.0"
    assert fact(found, "tokenizer", "name") == "tok"
    assert [by_id(found)[name]["phase"] for name in ("r1", "r2", "r3")] == ["warmup", "profile", "profile"]
    phases = [(p["name"], p["start_ns"], p["end_ns"]) for p in found.manifest["phases"]]
    assert phases == [
        ("warmup", -500_000_000, 0),
        ("profile", 0, 2_000_000_000),
        ("cooldown", 2_000_000_000, 3_500_000_000),
    ]


def test_all_failed(tmp_path: Path) -> None:
    benchmark = old_benchmark(1.7e9)
    benchmark["requests"]["successful"] = None
    (found,) = runs(write(tmp_path / "in", {"r.json": {"benchmarks": [benchmark]}}), tmp_path / "store")
    assert found.ledger is not None
    assert (found.ledger["profile"]["ok"], found.ledger["profile"]["error"]) == (0, 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"requests": {"successful": ["x"]}}, "expected an object per request"),
        ({"requests": {"successful": "x"}}, "no list"),
    ],
)
def test_rows_that_cannot_be_used(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    benchmark = {**old_benchmark(1.7e9), **change}
    benchmark["requests"].setdefault("errored", [old_request(3, 1.7e9, 0)])
    folder = write(tmp_path / "in", {"r.json": {"benchmarks": [benchmark]}})
    with pytest.raises(GapscopeError, match=words):
        runs(folder, tmp_path / "store")
    (found,) = runs(folder, tmp_path / "store", skip_bad_rows=True)
    assert words in checks(found)["rows_used"][1]


def test_values_of_any_type_do_not_stop_an_import(tmp_path: Path) -> None:
    request = old_request(1, 1.7e9, 5) | {"output_tokens": "5", "first_token_time": "x", "last_token_time": 1e300}
    benchmark = {**old_benchmark(1.7e9), "requests": {"successful": [request, old_request(2, 1.7e9 + 1, 2)]}}
    text = json.dumps({"benchmarks": [benchmark]}).replace('"duration": 4.0', '"duration": NaN')
    (found,) = runs(write(tmp_path / "in", {"r.json": text}), tmp_path / "store")
    row = by_id(found)["r1"]
    assert row["output_tokens"] is row["first_visible_ns"] is row["last_visible_ns"] is None
    assert row["flags"] == "output tokens not counted"
