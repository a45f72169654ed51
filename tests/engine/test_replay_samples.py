"""The sample runs can be replayed from their own record."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.bundle import find_bundle, open_bundle
from engine.identity import diff, like_for_like
from engine.knobs import resolve
from engine.replay import knobs_from_run, played_trace, replay
from engine.traces import find_trace, load_trace

SAMPLES = Path(__file__).resolve().parents[2] / "sample_runs"


@pytest.mark.parametrize(("name", "blocks"), [("ample8", 4096), ("tight8_repeat", 224)])
def test_the_deployment_is_read_from_the_measured_run(name: str, blocks: int) -> None:
    assert knobs_from_run(find_bundle([SAMPLES], name)) == {
        "lanes": 8,
        "lane_assignment": "strided",
        "lane_stagger_ms": 250.0,
        "warmup_s": 20.0,
        "duration_s": 150.0,
        "grace_s": 0.4,
        "kv_blocks": blocks,
        "block_size": 32,
        "kv_bytes_per_token": 6144,
        "prefix_caching": True,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 512,
        "long_prefill_token_threshold": 0,
        "reserve_full_prompt": True,
        "async_scheduling": False,
        "replicas": 1,
        "attention_dp": 1,
    }


def test_a_replay_of_a_sample_is_like_for_like_with_it_and_plays_the_same_plays(tmp_path: Path) -> None:
    measured = find_bundle([SAMPLES], "tight8")
    trace = load_trace(find_trace([SAMPLES], measured.identity.value("trace", "digest")))
    values = {**knobs_from_run(measured), "timing": "fixed", "fixed_pass_us": 20_000, "fixed_prefill_token_us": 300}
    made = open_bundle(tmp_path / replay(trace, values, store=tmp_path, like=measured))
    assert like_for_like(diff(measured.identity, made.identity))
    assert made.lineage["like"] == measured.run_id
    assert set(made.lineage["knobs_changed"]) == {"timing", "fixed_pass_us", "fixed_prefill_token_us"}
    assert [p.name for p in made.phases][:3] == [p.name for p in measured.phases][:3]
    columns = ["source_trace_id", "conversation_id", "turn_index", "lane", "input_tokens", "requested_output_tokens"]
    sides = []
    for bundle in (measured, made):
        table = bundle.table("requests", columns=columns)
        assert table is not None
        sides.append({(r["conversation_id"], r["turn_index"]): r for r in table.to_pylist()})
    shared = sides[0].keys() & sides[1].keys()
    assert len(shared) > 500
    assert all(sides[0][key] == sides[1][key] for key in shared)
    assert made.ledger is not None
    assert made.ledger["total"]["never_issued"] > 0


@pytest.mark.parametrize("moved", [{"prefill_replicas": 1}, {"host_kv_blocks": 100}])
def test_kv_that_moves_has_the_size_that_the_recording_knows(tmp_path: Path, moved: dict[str, int]) -> None:
    like, predicted = (find_bundle([SAMPLES], name) for name in ("ample8", "ample8-predicted"))
    short = {"timing": "fixed", "duration_s": 2.0, "warmup_s": 0.0}
    values = resolve(moved | short, knobs_from_run(predicted))
    assert values["kv_bytes_per_token"] == 6144
    trace = played_trace(predicted, [SAMPLES])
    bundle = open_bundle(tmp_path / replay(trace, values, None, store=tmp_path, like=like))
    assert bundle.identity.value("capacity", "kv_bytes_per_token") == 6144
    assert "kv_bytes_per_token" not in bundle.lineage["knobs_changed"]
    assert resolve({}, knobs_from_run(bundle)) == values
    asked = resolve(moved | short | {"kv_bytes_per_token": 131_072}, knobs_from_run(predicted))
    bundle = open_bundle(tmp_path / replay(trace, asked, None, store=tmp_path, like=like))
    assert bundle.identity.value("capacity", "kv_bytes_per_token") == 131_072  # the default, and yet a choice
    assert bundle.lineage["knobs_changed"]["kv_bytes_per_token"] == {"from": 6144, "to": 131_072}
    assert resolve({}, knobs_from_run(bundle)) == asked
