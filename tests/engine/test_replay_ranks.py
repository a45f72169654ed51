"""Replays of attention-DP ranks, from the knobs to the bundle."""

import numpy as np
import pytest

from engine.bundle import open_bundle
from engine.errors import GapscopeError
from engine.knobs import resolve
from engine.replay import replay
from engine.traces.tree import Conversation, Play, Segment, Trace, Turn

KNOBS = {
    "lanes": 2,
    "attention_dp": 2,
    "timing": "fixed",
    "fixed_pass_us": 1000,
    "fixed_prefill_token_us": 10,
    "fixed_decode_request_us": 100,
    "fixed_kv_token_ns": 0,
}


def trace():
    """Two plays of one turn each: 20 and 100 prompt tokens, 3 outputs each."""
    talks = [Conversation(f"p{n}", [Turn(3, 0, (Segment(f"a{n}", tokens),))]) for n, tokens in enumerate((20, 100))]
    return Trace("ranks", "made up", "0" * 64, [Play(talk.conversation_id, [talk]) for talk in talks])


def rows(tmp_path, table="passes", **changes):
    return open_bundle(tmp_path / replay(trace(), resolve(KNOBS | changes), store=tmp_path)).table(table).to_pylist()


def test_ranks_wait_for_the_slowest(tmp_path):
    # Prefill: 1,000 + 20 x 10 = 1,200 us and 1,000 + 100 x 10 = 2,000 us; then both decode one request: 1,100 us.
    passes = rows(tmp_path)
    assert [(p["pass_index"], p["step"], p["dp_rank"]) for p in passes] == [(n, n // 2, n % 2) for n in range(6)]
    assert [p["duration_ns"] for p in passes] == [2_000_000] * 2 + [1_100_000] * 4
    assert [p["wait_ns"] for p in passes] == [800_000, 0, 0, 0, 0, 0]
    for p in passes:
        assert p["prefill_ns"] + p["decode_ns"] + p["overhead_ns"] + p["wait_ns"] == p["duration_ns"]
    assert {(r["request_id"], r["dp_rank"]) for r in rows(tmp_path, "requests")} == {("p0/0", 0), ("p1/0", 1)}


def test_a_combined_price_is_one_query_per_step(tmp_path):
    # Prefill of both: 1,000 + 120 x 10 = 2,200 us; decodes of both: 1,000 + 2 x 100 = 1,200 us.
    passes = rows(tmp_path, dp_price="combined")
    assert [p["duration_ns"] for p in passes] == [2_200_000] * 2 + [1_200_000] * 4
    assert {p["wait_ns"] for p in passes} == {0}
    coverage = rows(tmp_path, "coverage", dp_price="combined")
    assert [(c["class"], c["new_tokens"], c["decode_requests"], c["count"]) for c in coverage] == [
        ("decode_only", 0, 2, 1),
        ("decode_only", 0, 2, 1),
        ("prefill_only", 120, 0, 1),
    ]


def test_a_run_without_ranks_has_no_waiting(tmp_path):
    assert {p["wait_ns"] for p in rows(tmp_path, attention_dp=1)} == {None}


def test_replicas_of_ranks_number_both(tmp_path):
    passes = rows(tmp_path, replicas=2, lanes=2, router="round_robin")
    assert {(p["worker_id"], p["dp_rank"]) for p in passes} == {("vllm-0", 0), ("vllm-1", 0)}
    starts = np.array([p["start_ns"] for p in passes])
    assert (np.diff(starts) >= 0).all()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"attention_dp": 1, "dp_router": "session"}, "attention_dp above 1"),
        ({"attention_dp": 1, "dp_price": "combined"}, "attention_dp above 1"),
        ({"timing": "measured", "measured_match": "order"}, "one scheduler only"),
        ({"attention_dp": 1024, "replicas": 2}, "2,048 schedulers: expected at most 1,024"),
    ],
)
def test_what_ranks_cannot_do_is_said(changes, named):
    with pytest.raises(GapscopeError, match=named):
        resolve(KNOBS | changes)
