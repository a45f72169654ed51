"""Replays give the tables that they gave before the client could delay what it sees (``data/replay_digests.json``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.bundle import open_bundle
from engine.replay import knobs_from_run, replay
from engine.traces import find_trace, load_trace
from engine.traces.tree import Trace
from tests.engine.client_harness import MS
from tests.engine.test_client_properties import random_trace

ROOT = Path(__file__).resolve().parents[2]
RECORDED: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / "data" / "replay_digests.json").read_text())

FIXED = {"timing": "fixed", "block_size": 4, "kv_blocks": 400, "max_num_batched_tokens": 32, "max_num_seqs": 8}
CASES: dict[str, dict[str, Any]] = {
    "canceled after the grace": {
        "lanes": 4,
        "warmup_s": 0.2,
        "duration_s": 0.9,
        "grace_s": 0.05,
        "dispatch_lag_ms": 1.5,
        "request_latency_ms": 3,
        "response_latency_ms": 7,
    },
    "canceled at the deadline, wrapped": {"lanes": 3, "duration_s": 1.3, "wrap": True, "lane_assignment": "cursor"},
    "to the end, with preemptions": {"lanes": 9, "kv_blocks": 125, "response_latency_ms": 2},
    "arrivals of the trace": {"arrivals": "trace", "request_latency_ms": 2, "duration_s": 0.7},
}


def workload() -> Trace:
    trace = random_trace(7, 9)
    for number, play in enumerate(trace.plays):
        play.arrival_ns = number * 37 * MS
    return trace


def digests(path: Path) -> dict[str, str]:
    """Content digest of each table of a run."""
    return {name: told["content"] for name, told in open_bundle(path).manifest["files"].items()}


@pytest.mark.parametrize("core", ["plain", "skipping"])
@pytest.mark.parametrize("case", CASES)
def test_tables_of_a_replay_are_what_they_were(tmp_path: Path, case: str, core: str) -> None:
    run_id = replay(workload(), {**FIXED, **CASES[case], "core": core}, store=tmp_path, slug="r")
    assert digests(tmp_path / run_id) == RECORDED[case]


@pytest.mark.parametrize("name", ["ample8", "tight8"])
def test_tables_of_a_sample_prediction_are_what_they_were(tmp_path: Path, name: str) -> None:
    """With the model that it was made with: a better fit is another prediction."""
    samples = ROOT / "sample_runs"
    (predicted,) = samples.glob(f"{name}-predicted-*")
    (measured,) = (p for p in samples.glob(f"{name}-*") if "predicted" not in p.name)
    like, model = open_bundle(measured), open_bundle(predicted).lineage["timing"]["model"]
    trace = load_trace(find_trace([samples], like.identity.value("trace", "digest")))
    run_id = replay(trace, knobs_from_run(like), model, store=tmp_path, like=like)
    assert digests(tmp_path / run_id) == digests(predicted)
