"""A replay with drafts, from the knobs to the bundle."""

import pytest

from engine.bundle import open_bundle
from engine.knobs import resolve
from engine.replay import replay
from engine.traces.tree import Conversation, Play, Segment, Trace, Turn

KNOBS = {
    "lanes": 2,
    "timing": "fixed",
    "fixed_pass_us": 1000,
    "fixed_prefill_token_us": 0,
    "fixed_decode_request_us": 0,
    "fixed_kv_token_ns": 0,
    "spec_method": "mtp",
    "spec_tokens": 2,
    "spec_acceptance": "1, 0",
}


def trace(plays=2, outputs=6):
    turns = [Turn(outputs, 0, (Segment("a", 20),)), Turn(outputs, 0, (Segment("b", 10),))]
    talks = [Play(f"p{n}", [Conversation(f"p{n}", list(turns))]) for n in range(plays)]
    return Trace("drafts", "made up", "0" * 64, talks)


def made(tmp_path, **changes):
    run_id = replay(trace(), resolve(KNOBS | changes), store=tmp_path)
    return open_bundle(tmp_path / run_id)


def test_tokens_come_in_bursts_that_share_a_time(tmp_path):
    # The first draft is always accepted, the second never: the prefill samples 1, then 2, 2, and 1 as no more is asked.
    bundle = made(tmp_path)
    chunks = bundle.table("chunks").to_pylist()
    by_request = {}
    for row in chunks:
        by_request.setdefault(row["request_id"], []).append((row["ordinal"], row["time_ns"], row["tokens"]))
    assert sorted(by_request) == ["p0/0", "p0/1", "p1/0", "p1/1"]
    assert by_request["p0/0"] == [(0, 1_000_000, 1), (1, 2_000_000, 2), (2, 3_000_000, 2), (3, 4_000_000, 1)]
    requests = {row["request_id"]: row for row in bundle.table("requests").to_pylist()}
    assert [requests[name]["output_tokens"] for name in sorted(requests)] == [6] * 4
    assert requests["p0/0"]["last_visible_ns"] - requests["p0/0"]["first_visible_ns"] == 3_000_000
    # A second turn hits the blocks of prompt and output of the first: 20 + 6 tokens, of which one block of 16.
    assert requests["p0/1"]["cached_tokens"] == 16


def test_passes_say_what_was_verified_and_what_was_sampled(tmp_path):
    bundle = made(tmp_path)
    rows = bundle.table("passes").to_pylist()
    assert [row["num_output_tokens"] for row in rows] == [2, 4, 4, 2] * 2
    members = [(m["request_id"], m["computed_before"], m["scheduled_tokens"]) for m in rows[2]["members"]]
    assert members == [("p0/0", 22, 3), ("p1/0", 22, 3)]
    assert {(row["class"], row["verify_width"]) for row in bundle.table("coverage").to_pylist()} == {
        ("decode_only", 3),
        ("prefill_only", 1),
    }


def test_the_record_names_method_and_acceptance(tmp_path):
    identity = made(tmp_path).identity
    assert identity.value("speculation", "method") == "mtp"
    assert identity.value("speculation", "draft_tokens") == 2
    assert identity.value("speculation", "acceptance") == "1, 0"


@pytest.mark.parametrize("core", ["plain", "skipping"])
def test_both_cores_write_the_same_run(tmp_path, core):
    other = {"plain": "skipping", "skipping": "plain"}[core]
    ids = [made(tmp_path / name, core=name, spec_acceptance="0.7, 0.4").run_id for name in (core, other)]
    assert ids[0] == ids[1]
