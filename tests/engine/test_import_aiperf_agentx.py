"""An hour of agentic replay on GPUs that others published; skipped where it is not at hand."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from public_files import PUBLIC

from tests.engine.aiperf_runs import Run, imported

HOUR = PUBLIC / "agentx_kimik2.7_mi355x_conc1"

pytestmark = pytest.mark.skipif(not HOUR.is_dir(), reason="the published hour is not at hand")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    (found,) = imported(HOUR, tmp_path_factory.mktemp("store"))
    return found


def test_warmup_and_profile_are_apart(run: Run) -> None:
    assert {phase: row["attempted"] for phase, row in run.manifest["ledger"].items()} == {
        "warmup": 1, "profile": 195, "total": 196,
    }  # fmt: skip
    assert run.phase("profile") == (0, 3_600_000_000_000)
    assert run.phase("grace") == (3_600_000_000_000, 3_630_002_753_000)
    (warmup,) = [row for row in run.requests.values() if row["phase"] == "warmup"]
    assert (warmup["output_tokens"], warmup["input_tokens"]) == (1, 192_422)


def test_both_denominators(run: Run) -> None:
    verdict, detail = run.check("throughput_denominator")
    assert verdict == "pass"
    assert "58.682 tok/s over the phase window of 3630.003 s" in detail
    assert "60.126 tok/s over the activity span of 3542.819 s" in detail
    assert "the summary states 58.682, which is that over the phase window" in detail
    profile = [row for row in run.requests.values() if row["phase"] == "profile"]
    tokens = sum(row["output_tokens"] for row in profile)
    span = max(row["last_visible_ns"] for row in profile) - min(row["dispatched_ns"] for row in profile)
    assert tokens == 213_017
    assert tokens / (span / 1e9) == pytest.approx(60.126, abs=5e-4)


def test_summary_follows_from_the_rows(run: Run) -> None:
    assert run.check("summary_reproduced")[0] == "pass"
    assert run.check("warmup_summary_reproduced")[0] == "pass"
    assert run.check("slices_add_up")[0] == "pass"
    stated = json.loads((HOUR / "profile_export_aiperf.json").read_text())["time_to_first_token"]
    rows = [row for row in run.requests.values() if row["phase"] == "profile"]
    values = np.array([row["first_visible_ns"] - row["dispatched_ns"] for row in rows]) / 1e6
    for percent in (50, 90, 99):
        assert np.percentile(values, percent) == pytest.approx(stated[f"p{percent}"], abs=1e-5)


def test_each_metric_has_its_own_n(run: Run) -> None:
    n = {r["name"]: r["n"] for r in run.table("reported") if r["scope"] == "run" and r["statistic"] == "mean"}
    assert (n["time_to_first_token"], n["inter_token_latency"], n["inter_chunk_latency"]) == (195, 195, 212_364)


def test_what_is_not_recorded(run: Run) -> None:
    words = " ".join(run.manifest["lineage"]["not_recorded"])
    assert "Cached prompt tokens" in words
    assert "How a stream ended" in words
    assert "Figures of the GPUs" in words
    assert all(row["cached_tokens"] is None for row in run.requests.values())


def test_identity_is_what_the_files_say(run: Run) -> None:
    assert run.identity("source", "engine") == "vllm"
    assert run.identity("topology", "tp") == 4
    assert run.identity("scheduler", "max_num_seqs") == 1
    assert run.identity("capacity", "block_size") == 1
    assert run.identity("client", "lanes") == 1
    assert run.identity("client", "idle_caps") == "10 s per trace"
    assert run.identity("hardware", "part") is None  # only the folder's name says it
    assert run.check("submission_valid")[0] == "pass"
    assert run.check("concurrency_kept") == (
        "pass",
        "at most 4 requests were in flight and 1 session trees open, where 1 trees were asked for",
    )


def test_chunks_are_those_of_the_records(run: Run) -> None:
    with gzip.open(HOUR / "profile_export.jsonl.gz") as file:
        gaps = [len(json.loads(line)["metrics"].get("inter_chunk_latency", {"value": []})["value"]) for line in file]
    assert len(run.table("chunks")) == sum(n + 1 for n in gaps if n)
