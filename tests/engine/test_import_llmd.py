"""Benchmark reports of llm-d, of both shapes, and reports that cannot be true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from foreign_files import checks, fact, figures, plan, rows, runs, verdict, write

from engine.errors import GapscopeError


def block(units: str, mean: float) -> dict[str, Any]:
    return {
        "units": units,
        "mean": mean,
        "p0p1": mean / 2,
        "p50": mean,
        "p99p9": mean * 2,
        "min": mean / 4,
        "max": mean * 3,
    }


def old(**metrics: Any) -> dict[str, Any]:
    """100 requests of 32 tokens in 64 s are 50 tokens/s."""
    return {
        "version": "0.1",
        "scenario": {
            "model": {"name": "org/m"},
            "load": {"name": "inference-perf"},
            "host": {"type": ["replica"], "accelerator": [{"model": "H200", "count": 1}]},
            "platform": {"engine": [{"name": "vllm"}]},
        },
        "metrics": {
            "time": {"duration": 64.0, "start": 1000.0, "stop": 1064.0},
            "requests": {
                "total": 100,
                "failures": 0,
                "input_length": block("count", 1000.0),
                "output_length": block("count", 32.0),
            },
            "latency": {
                "time_to_first_token": block("ms", 100.0),
                "request_latency": block("ms", 900.0),
                "inter_token_latency": block("ms/token", 25.0),
            },
            "throughput": {"output_tokens_per_sec": 50.0, "requests_per_sec": 1.5625},
            **metrics,
        },
    }


def new(version: str = "0.2") -> dict[str, Any]:
    aggregate = {
        "requests": {"total": 100, "failures": 2, "output_length": block("count", 32.0)},
        "latency": {"time_to_first_token": block("s", 0.1), "request_latency": block("s", 0.9)},
        "throughput": {
            "output_token_rate": block("tokens/s", 49.0),
            "request_rate": {"units": "queries/s", "mean": 1.53},
        },
    }
    return {
        "version": version,
        "run": {
            "uid": "u",
            "time": {"start": "2026-01-14T12:58:00Z", "end": "2026-01-14T12:59:04Z", "duration": "PT64S"},
        },
        "scenario": {
            "stack": [
                {"standardized": {"kind": "engine", "tool": "vllm", "tool_version": "0.15", "model": {"name": "org/m"}}}
            ],
            "load": {"standardized": {"tool": "inference-perf", "tool_version": "0.4", "concurrency": 8}},
        },
        "results": {
            "request_performance": {"aggregate": aggregate},
            "observability": {
                "components": [
                    {"component_label": "decode", "replica_id": "0", "aggregate": {"kv_usage": block("fraction", 0.5)}}
                ]
            },
        },
    }


def test_a_report_of_version_one(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"report.json": old()})
    (part,) = plan(folder).parts
    assert (part.format, part.kind) == ("llm-d-report", "imported_summary")
    (run,) = runs(folder, tmp_path / "store")
    told = figures(run)
    assert told["time_to_first_token", "mean"] == 100.0
    assert told["request_latency", "p0.1"] == 450.0
    assert told["request_latency", "p99.9"] == 1800.0
    units = {row["name"]: (row["unit"], row["metric"]) for row in rows(run, "reported")}
    assert units["time_to_first_token"] == ("ms", "ttft")
    assert units["inter_token_latency"] == ("ms", "chunk_gap")
    assert fact(run, "client", "generator") == "inference-perf"
    assert fact(run, "model", "name") == "org/m"
    assert fact(run, "hardware", "part") == "H200"
    for check in ("statistics_ordered", "units_plausible", "times_in_order", "rates_add_up"):
        assert verdict(run, check) == "pass", checks(run)[check]


@pytest.mark.parametrize("version", ["0.2", "0.2.1", "v0.2"])
def test_a_report_of_version_two(tmp_path: Path, version: str) -> None:
    (run,) = runs(write(tmp_path / "in", {"report.json": new(version)}), tmp_path / "store")
    told, server = figures(run), figures(run, "server")
    assert told["output_token_rate", "mean"] == 49.0
    assert told["total", "value"] == 100
    assert server["kv_usage", "mean"] == 0.5
    assert fact(run, "source", "version") == "0.15"
    assert fact(run, "client", "lanes") == 8
    assert fact(run, "client", "version") == "0.4"
    assert run.lineage["report_version"] == version.removeprefix("v")
    assert verdict(run, "times_in_order") == "pass", checks(run)["times_in_order"]
    assert verdict(run, "rates_add_up") == "pass"


def test_stop_before_start(tmp_path: Path) -> None:
    times = {"duration": 64.0, "start": 1064.0, "stop": 1000.0}
    (run,) = runs(write(tmp_path / "in", {"report.json": old(time=times)}), tmp_path / "store")
    assert checks(run)["times_in_order"] == ("fail", "stop lies 64 s before start")


def test_seconds_labelled_as_milliseconds(tmp_path: Path) -> None:
    """0.9 ms for 32 tokens."""
    latency = {"time_to_first_token": block("ms", 0.1), "request_latency": block("ms", 0.9)}
    (run,) = runs(write(tmp_path / "in", {"report.json": old(latency=latency)}), tmp_path / "store")
    assert verdict(run, "units_plausible") == "fail"
    assert "a unit is likely another" in checks(run)["units_plausible"][1]


def test_mixed_units(tmp_path: Path) -> None:
    latency = {"time_to_first_token": block("s", 100.0), "request_latency": block("ms", 900.0)}
    (run,) = runs(write(tmp_path / "in", {"report.json": old(latency=latency)}), tmp_path / "store")
    assert "the mean TTFT of 100 s is above the mean latency of 0.9 s" in checks(run)["units_plausible"][1]


def test_rates_that_do_not_add_up(tmp_path: Path) -> None:
    (run,) = runs(
        write(tmp_path / "in", {"report.json": old(throughput={"output_tokens_per_sec": 500.0})}), tmp_path / "store"
    )
    assert verdict(run, "rates_add_up") == "fail"


def test_a_report_of_nothing(tmp_path: Path) -> None:
    empty = old(requests={"total": 5, "failures": 5}, latency={"request_latency": None}, throughput={})
    (run,) = runs(write(tmp_path / "in", {"report.json": empty}), tmp_path / "store")
    assert figures(run)["failures", "value"] == 5
    assert verdict(run, "units_plausible") == "unknown"


def test_yaml_is_told_and_not_read(tmp_path: Path) -> None:
    text = (
        "metrics:\n  latency:\n    request_latency:\n      mean: 0.9\n      units: s\n"
        "scenario:\n  model:\n    name: m\nversion: '0.1'\n"
    )
    folder = write(tmp_path / "in", {"report.yaml": text})
    (part,) = plan(folder).parts
    assert (part.format, part.version) == ("llm-d-report", "0.1")
    assert part.notes == (
        "report.yaml is a report in YAML, which is not read here: convert it to JSON (`yq -o json`) and import that.",
    )
    with pytest.raises(GapscopeError, match="convert it to JSON"):
        runs(folder, tmp_path / "store")


def test_other_versions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GapscopeError, match=r"of version '0.9', known are 0.1, 0.2 and 0.2.1"):
        runs(write(tmp_path / "in", {"report.json": new("0.9")}), tmp_path / "store")


def test_a_latency_in_an_unknown_unit_is_named(tmp_path: Path) -> None:
    latency = {"request_latency": block("fortnights", 0.9), "time_to_first_token": block("ms", 100.0)}
    (run,) = runs(write(tmp_path / "in", {"r.json": old(latency=latency)}), tmp_path / "store")
    state, detail = checks(run)["units_known"]
    assert state == "fail"
    assert "request_latency in 'fortnights', 1 time, first in r.json" in detail
    (sound,) = runs(write(tmp_path / "sound", {"r.json": old()}), tmp_path / "store")
    assert verdict(sound, "units_known") == "pass"
