"""InferenceX results: every figure here is written by hand, or recomputed from the rows that it came from."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_files import checks, fact, figures, plan, rows, runs, verdict, write
from public_files import PUBLIC

from engine.errors import GapscopeError

AGENTX = PUBLIC / "agentx_kimik2.7_mi355x_conc1"


def fixed(**values: Any) -> dict[str, Any]:
    """64 requests of 1024 and 1024 tokens in flight on 8 GPUs: 20 ms a token are 50 tokens/s for each."""
    return {
        "hw": "mi355x_0",
        "conc": 64,
        "image": "registry/engine:1@sha256:abcd",
        "model": "org/Model-R1",
        "infmax_model_prefix": "r1",
        "framework": "vllm",
        "precision": "fp4",
        "spec_decoding": "none",
        "disagg": "false",
        "isl": 1024,
        "osl": 1024,
        "is_multinode": False,
        "tp": 8,
        "ep": 1,
        "dp_attention": "True",
        "tput_per_gpu": 800.0,
        "output_tput_per_gpu": 400.0,
        "input_tput_per_gpu": 400.0,
        "mean_ttft": 0.5,
        "median_ttft": 0.4,
        "p99_ttft": 1.5,
        "mean_tpot": 0.02,
        "median_tpot": 0.02,
        "mean_intvty": 50.0,
        "median_intvty": 50.0,
        "mean_e2el": 20.96,
        "power_avg": 700.0,
        **values,
    }


def agentic(**values: Any) -> dict[str, Any]:
    latency = {"mean": 10.0, "p50": 9.0, "p75": 12.0, "p90": 15.0, "p95": 20.0, "std": 3.0}
    itl = {"mean": 0.02, "p50": 0.02, "p75": 0.02, "p90": 0.03, "p95": 0.04, "std": 0.01}
    return {
        **{key: value for key, value in fixed().items() if "_" not in key or key in ("is_multinode", "dp_attention")},
        "conc": 4,
        "scenario_type": "agentic-coding",
        "num_requests_total": 103,
        "num_requests_successful": 95,
        "request_accounting": {
            "records_total": 103,
            "records_profiled": 95,
            "records_dropped_total": 8,
            "records_warmup_dropped": 5,
            "records_error_dropped": 3,
            "error_categories": {"TimeoutError": 3},
        },
        "dataset": {"source_type": "hf", "hf_dataset_name": "org/traces", "num_dataset_entries": 393},
        "request_metrics": {
            "qps": {"window_seconds": 60, "samples": 60, "mean": 0.1, "p50": 0.1},
            "latency": {
                "ttft": {"mean": 1.0, "p50": 0.5},
                "e2el": latency,
                "itl": itl,
                "tpot": dict(itl),
                "intvty": {"mean": 50.0, "p50": 50.0, "p90": 33.33333},
            },
            "tokens": {"output_actual": {"mean": 400.0}, "input": {"mean": 90000.0}},
            "throughput": {
                "input": {"tokens_per_second": 8000.0},
                "output": {"tokens_per_second": 800.0},
                "total": {"tokens_per_second": 8800.0},
                "duration_seconds": 3600.5,
                "per_gpu": {"total_tput_tps": 1100.0, "output_tput_tps": 100.0, "input_tput_tps": 1000.0},
            },
            "cache": {"theoretical_cache_hit_rate": 0.93},
        },
        "server_metrics": {
            "present": True,
            "cache": {"gpu_cache_hit_rate": 0.9, "cached_tokens_by_source": {"gpu": 12}},
            "kv_cache": {"gpu_usage_pct": 0.4},
            "sources": [{"id": "0", "role": "decode", "prompt_tokens": 7, "prefix_cache_hit_rate": 0.5}],
        },
        **values,
    }


def test_a_result_of_fixed_lengths(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"results.json": fixed()})
    (part,) = plan(folder).parts
    assert (part.format, part.kind) == ("inferencex", "imported_summary")
    (run,) = runs(folder, tmp_path / "store")
    assert run.table("requests") is None
    told = figures(run)
    assert told["ttft", "mean"] == 0.5
    assert told["ttft", "p50"] == 0.4
    assert told["tput_per_gpu", "value"] == 800.0
    assert told["intvty", "mean"] == 50.0
    units = {row["name"]: (row["unit"], row["metric"]) for row in rows(run, "reported")}
    assert units["e2el"] == ("s", "e2e")
    assert units["tpot"] == ("s", "tpot")
    assert units["tput_per_gpu"] == ("tok/s/GPU", None)
    assert "isl" not in units  # of the head, no figure
    assert all(row["definition"] for row in rows(run, "reported") if row["metric"])


def test_text_booleans_and_runner_suffixes(tmp_path: Path) -> None:
    (run,) = runs(write(tmp_path / "in", {"a.json": fixed()}), tmp_path / "store")
    assert fact(run, "hardware", "part") == "MI355X"
    assert fact(run, "hardware", "count") == 8
    assert fact(run, "topology", "serving") == "aggregated"
    assert fact(run, "topology", "attention_dp") == "on"
    assert fact(run, "client", "lanes") == 64
    assert fact(run, "source", "image_digest") == "sha256:abcd"
    assert run.lineage["header"]["hw"] == "mi355x_0"
    assert run.lineage["schema"] == "v2"


@pytest.mark.parametrize(
    ("hw", "part"),
    [("h200-nv", "H200"), ("mi355x-amds_01", "MI355X"), ("cluster:b200-x", "B200"), ("a runner", None), (7, None)],
)
def test_hardware_is_read_off_the_runner(tmp_path: Path, hw: Any, part: str | None) -> None:
    (run,) = runs(write(tmp_path / "in", {"a.json": fixed(hw=hw)}), tmp_path / "store")
    assert fact(run, "hardware", "part") == part


def test_schema_v1_knows_less(tmp_path: Path) -> None:
    point = fixed()
    for key in ("disagg", "is_multinode", "spec_decoding"):
        del point[key]
    (run,) = runs(write(tmp_path / "in", {"a.json": point}), tmp_path / "store")
    assert run.lineage["schema"] == "v1"
    assert fact(run, "topology", "serving") is None
    assert fact(run, "speculation", "method") is None


def test_prefill_and_decode_apart(tmp_path: Path) -> None:
    """8 GPUs of prefill, 16 of decode: (300 x 8 + 600 x 16) / 24 = 500."""
    point = fixed(
        disagg="true",
        is_multinode="true",
        prefill_tp=4,
        decode_tp=8,
        prefill_ep=1,
        decode_ep=1,
        prefill_num_workers=2,
        decode_num_workers=2,
        prefill_dp_attention="false",
        decode_dp_attention="true",
        num_prefill_gpu=8,
        num_decode_gpu=16,
        tput_per_gpu=500.0,
        input_tput_per_gpu=300.0,
        output_tput_per_gpu=600.0,
    )
    (run,) = runs(write(tmp_path / "in", {"a.json": point}), tmp_path / "store")
    assert fact(run, "hardware", "count") == 24
    assert fact(run, "topology", "tp") == {"prefill": 4, "decode": 8}
    assert fact(run, "topology", "ep") == 1
    assert fact(run, "topology", "attention_dp") == {"prefill": 1, "decode": "on"}
    assert fact(run, "topology", "serving") == "prefill/decode"
    assert fact(run, "topology", "prefill_workers") == 2
    assert verdict(run, "per_gpu_rates") == "pass"


def test_a_list_is_a_run_per_object(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"list.json": [fixed(), {"note": 1}, fixed(conc=128), 7]})
    found = plan(folder)
    assert [part.name.rpartition(" ")[2] for part in found.parts] == ["64", "128"]
    assert [name for name, _ in found.parts[0].ignores] == ["list.json object 2", "list.json object 4"]
    both = runs(folder, tmp_path / "store")
    assert [fact(run, "client", "lanes") for run in both] == [64, 128]


@pytest.mark.parametrize(
    ("values", "check"),
    [
        ({"mean_intvty": 20.0}, "interactivity"),
        ({"tput_per_gpu": 600.0}, "per_gpu_rates"),
        ({"p99_ttft": 0.1}, "statistics_ordered"),
        ({"mean_ttft": 30.0}, "units_plausible"),
        ({"mean_e2el": 0.003}, "units_plausible"),  # 1024 tokens in 3 ms
    ],
)
def test_what_a_result_says_twice(tmp_path: Path, values: dict[str, Any], check: str) -> None:
    sound, broken = (
        runs(write(tmp_path / name, {"a.json": point}), tmp_path / "store")[0]
        for name, point in (("sound", fixed()), ("broken", fixed(**values)))
    )
    assert verdict(sound, check) == "pass"
    assert verdict(broken, check) == "fail"


def test_an_agentic_result(tmp_path: Path) -> None:
    (run,) = runs(write(tmp_path / "in", {"a.json": agentic()}), tmp_path / "store")
    told, server = figures(run), figures(run, "server")
    assert told["e2el", "p95"] == 20.0
    assert told["output_tput", "value"] == 800.0
    assert told["theoretical_cache_hit_rate", "value"] == 0.93
    assert told["records_error_dropped", "value"] == 3
    assert server["cache.gpu_cache_hit_rate", "value"] == 0.9
    assert server["kv_cache.gpu_usage_pct", "value"] == 0.4  # a fraction, whatever its name says
    assert server["prefix_cache_hit_rate", "value"] == 0.5
    named = {row["name"]: row for row in rows(run, "reported")}
    assert named["prefix_cache_hit_rate"]["labels"] == "decode 0"
    assert named["tpot"]["definition"] == "a copy of itl"
    assert named["itl"]["metric"] == "tpot"
    assert fact(run, "trace", "name") == "org/traces"
    assert fact(run, "client", "duration_s") == 3600.5
    assert {name: verdict(run, name) for name in ("records_accounted", "tpot_is_itl", "per_gpu_rates")} == {
        "records_accounted": "pass",
        "tpot_is_itl": "pass",
        "per_gpu_rates": "pass",
    }
    assert checks(run)["errors_dropped"] == (
        "fail",
        "3 requests failed and are in no figure (TimeoutError: 3)",
    )


@pytest.mark.parametrize(
    ("group", "key", "value", "check"),
    [
        ("request_accounting", "records_profiled", 90, "records_accounted"),
        ("request_accounting", "records_warmup_dropped", 4, "records_accounted"),
        ("request_metrics", "latency", {"tpot": {"mean": 0.03}, "itl": {"mean": 0.02}}, "tpot_is_itl"),
    ],
)
def test_an_agentic_result_that_does_not_add_up(tmp_path: Path, group: str, key: str, value: Any, check: str) -> None:
    point = agentic()
    point[group] = {**point[group], key: value}
    (run,) = runs(write(tmp_path / "in", {"a.json": point}), tmp_path / "store")
    assert verdict(run, check) == "fail"


def test_the_flat_schema_of_april(tmp_path: Path) -> None:
    point = {
        "hw": "b200",
        "users": 8,
        "model": "org/m",
        "framework": "vllm",
        "precision": "fp8",
        "scenario_type": "agentic-coding",
        "tp": 4,
        "offload_mode": "on",
        "num_requests_total": 100,
        "mean_ttft": 1.0,
        "p99.9_ttlt": 9.0,
        "median_itl": 0.01,
        "output_tput_tps": 300.0,
        "theoretical_cache_hit_rate": None,
    }
    (run,) = runs(write(tmp_path / "in", {"a.json": point}), tmp_path / "store")
    told = figures(run)
    assert told["ttlt", "p99.9"] == 9.0
    assert told["itl", "p50"] == 0.01
    assert told["output_tput_tps", "value"] == 300.0
    assert ("theoretical_cache_hit_rate", "value") not in told  # null is not a figure
    assert fact(run, "client", "lanes") == 8


def test_numbers_that_are_none_are_left_out(tmp_path: Path) -> None:
    text = json.dumps(fixed(mean_ttft=float("nan"), p99_ttft=float("inf"), mean_tpot="fast", mean_e2el=None))
    (run,) = runs(write(tmp_path / "in", {"a.json": text}), tmp_path / "store")
    told = figures(run)
    assert {("ttft", "mean"), ("ttft", "p99"), ("tpot", "mean"), ("e2el", "mean")} & told.keys() == set()
    assert told["ttft", "p50"] == 0.4


def test_a_result_that_breaks_off_says_so(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"a.json": json.dumps([fixed(), fixed()])[:-30]})
    (part,) = plan(folder).parts
    assert part.format == "inferencex"
    with pytest.raises(GapscopeError, match="not JSON"):
        runs(folder, tmp_path / "store")


def test_rows_in_the_same_input_are_named(tmp_path: Path) -> None:
    record = {
        "metadata": {"session_num": 0, "x_request_id": "a", "benchmark_phase": "profiling", "request_start_ns": 1},
        "metrics": {"request_latency": {"value": 1.0, "unit": "ms"}},
    }
    folder = write(tmp_path / "in", {"agg.json": agentic(), "artifacts/records.jsonl": [record]})
    with_rows = [part for part in plan(folder).parts if part.format == "inferencex"]
    assert any("better source" in note for note in with_rows[0].notes)


@pytest.mark.skipif(not AGENTX.exists(), reason="public files are not part of the project")
def test_agentx_figures_follow_from_the_rows(tmp_path: Path) -> None:
    """The JSON that InferenceX would write of the hour, made from its records by InferenceX's rules."""
    lines = gzip.decompress((AGENTX / "profile_export.jsonl.gz").read_bytes()).splitlines()
    records = [json.loads(line) for line in lines]
    kept = [r for r in records if r["metadata"]["benchmark_phase"] == "profiling" and not r.get("error")]

    def values(tag: str) -> np.ndarray:
        return np.array([r["metrics"][tag]["value"] for r in kept if tag in r["metrics"]], float)

    def block(numbers: np.ndarray) -> dict[str, float]:
        found = {"mean": numbers.mean(), "std": numbers.std()}
        found |= {f"p{p}": np.percentile(numbers, p) for p in (50, 75, 90, 95)}
        return {word: round(float(value), 5) for word, value in found.items()}

    ends = [r["metadata"]["request_end_ns"] for r in kept]
    starts = [r["metadata"]["request_start_ns"] for r in kept]
    duration = (max(ends) - min(starts)) / 1e9
    output, given = values("output_sequence_length").sum() / duration, values("input_sequence_length").sum() / duration
    assert output == pytest.approx(60.126, abs=5e-4)  # the summary of the same run says 58.682, over the phase window
    itl = block(values("inter_token_latency") / 1e3)
    summary = json.loads((AGENTX / "profile_export_aiperf.json").read_text())
    hit = summary["theoretical_prefix_cache_hit"]
    point = agentic(
        num_requests_total=len(records),
        num_requests_successful=len(kept),
        tp=4,
        request_accounting={
            "records_total": len(records),
            "records_profiled": len(kept),
            "records_dropped_total": len(records) - len(kept),
            "records_warmup_dropped": sum(r["metadata"]["benchmark_phase"] == "warmup" for r in records),
            "records_error_dropped": sum(
                r["metadata"]["benchmark_phase"] == "profiling" and bool(r.get("error")) for r in records
            ),
        },
        request_metrics={
            "latency": {
                "ttft": block(values("time_to_first_token") / 1e3),
                "e2el": block(values("request_latency") / 1e3),
                "itl": itl,
                "tpot": itl,
                "intvty": {word: round(1 / value, 5) for word, value in itl.items() if word != "std"},
            },
            "tokens": {"output_actual": block(values("output_sequence_length"))},
            "throughput": {
                "input": {"tokens_per_second": round(float(given), 5)},
                "output": {"tokens_per_second": round(float(output), 5)},
                "total": {"tokens_per_second": round(float(given + output), 5)},
                "duration_seconds": round(duration, 5),
                "per_gpu": {"output_tput_tps": round(float(output) / 4, 5)},
            },
            "cache": {"theoretical_cache_hit_rate": round(hit["sum"] / hit["count"], 5)},
        },
    )
    (run,) = runs(write(tmp_path / "in", {"agg.json": point}), tmp_path / "store")
    for check in ("records_accounted", "tpot_is_itl", "per_gpu_rates", "statistics_ordered", "units_plausible"):
        assert verdict(run, check) == "pass", checks(run)[check]
    told = figures(run)
    assert told["output_tput", "value"] == pytest.approx(60.126, abs=5e-4)
    assert told["theoretical_cache_hit_rate", "value"] == pytest.approx(0.92787, abs=1e-5)
    assert told["itl", "mean"] == pytest.approx(summary["inter_token_latency"]["avg"] / 1e3, abs=1e-5)
    assert told["e2el", "p90"] == pytest.approx(summary["request_latency"]["p90"] / 1e3, abs=1e-5)
