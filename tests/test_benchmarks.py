"""The benchmarks find what they measure; their figures are theirs."""

from __future__ import annotations

from pathlib import Path

from benchmarks import prediction, replay_speed, workloads
from engine.bundle import find_bundle
from engine.traces import load_trace


def test_sample_runs_are_found_by_name() -> None:
    for name in replay_speed.SAMPLE_RUNS:
        path, knobs = replay_speed.sample(name)
        assert load_trace(path).digest.startswith("50853bd0473a")
        assert (knobs["timing"], knobs["lanes"]) == ("fixed", 8)
    for name in prediction.RUNS:
        assert find_bundle([prediction.SAMPLES], name).kind == "measured"


def test_the_small_workload_is_the_generators(tmp_path: Path) -> None:
    trace = load_trace(workloads.trace_file(workloads.WORKLOADS["chat"], tmp_path))
    assert len(trace.plays) == 10_000
    assert trace.hash_block_tokens == 64
