"""What became of blocks, counted by hand on small runs and checked for totals and identities on the samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from small_runs import MS, SAMPLES, S, a_pass, identity, request, sample_id, write

from dashboard.charts.cache.reuse import why
from dashboard.metrics import HEADLINE, Population
from dashboard.queries import cache, cohort, reuse
from dashboard.queries import request as of_request
from dashboard.store import Store
from engine.bundle import BundleWriter


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture(scope="module")
def samples() -> Iterator[Store]:
    found = Store([SAMPLES])
    yield found
    found.close()


def moves(store: Store, run_id: str) -> list[dict[str, Any]]:
    """Every block that an event moved, as the queries see it."""
    table = store._worked_out(run_id, "block_moves")
    return store._run(f"SELECT * FROM {table} ORDER BY move", {}, 30.0, "block_moves").to_pylist()


def events(*rows: tuple[int, str, list[int] | None, dict[str, Any]]) -> list[dict[str, Any]]:
    """Cache events from (ms, kind, blocks, what else is known), in order."""
    return [
        {
            "event_index": index,
            "time_ns": ms * MS,
            "kind": kind,
            "num_blocks": None if kind == "clear" else len(hashes or ()),
            "block_hashes": hashes,
        }
        | values
        for index, (ms, kind, hashes, values) in enumerate(rows)
    ]


def works(index: int, *members: tuple[str, int, int]) -> dict[str, Any]:
    """A pass of 10 ms, one every 20 ms, with (request, computed before, scheduled) in scheduling order."""
    names = ("request_id", "computed_before", "scheduled_tokens")
    return a_pass(index, members=[dict(zip(names, member, strict=True)) for member in members])


def test_blocks_are_joined_with_pass_and_request(root: Path) -> None:
    passes = [
        works(0, ("a", 0, 64), ("b", 0, 40)),  # fill 2 and 1 blocks, take 2 and 2
        works(1, ("a", 64, 1), ("c", 0, 32)),  # both take one block, c fills it
        works(2, ("a", 65, 1), ("d", 0, 96), ("e", 0, 32)),
        works(3, ("f", 0, 32), ("b", 40, 1)),  # f alone takes a block
        works(4, ("a", 96, 1), ("b", 64, 1)),  # both take a block, and one is evicted
        works(5, ("g", 32, 32), ("h", 64, 64)),  # reused 1 and 2 blocks
    ]
    named = [
        (5, "store", [1, 2], {"pass_index": 0}),
        (5, "store", [5], {"pass_index": 0}),
        (25, "evict", [1, 2], {"pass_index": 1}),
        (25, "store", [7], {"pass_index": 1}),
        (45, "evict", [5], {"pass_index": 2}),
        (45, "store", [10, 11, 12], {"pass_index": 2, "request_id": "d"}),
        (45, "evict", [7], {"pass_index": 2}),
        (45, "store", [13], {"pass_index": 2, "request_id": "e"}),
        (65, "evict", [10], {"pass_index": 3}),
        (66, "store", [14], {}),
        (85, "evict", [11], {"pass_index": 4}),
        (100, "hit", [13], {"pass_index": 5}),
        (101, "hit", [12, 14], {"request_id": "h", "pass_index": 5}),
        (105, "store", None, {"request_id": "h", "pass_index": 5, "num_blocks": 2}),
        (500, "store", [20], {}),
    ]
    admitted = [
        {
            "request_id": name,
            "ordinal": 0,
            "time_ns": 100 * MS,
            "pass_index": 5,
            "cached_tokens": 32 * hit,
            "hit_blocks": hit,
        }
        | {"is_readmission": False}
        for name, hit in (("g", 1), ("h", 2))
    ]
    names = "abcdefgh"
    run_id = write(root, "m", [request(n) for n in names], passes=passes, kv_events=events(*named), admissions=admitted)
    store = Store([root])
    told = {
        (row["kind"], row["hash"]): (row["request_id"], row["pass_index"], row["rule"])
        for row in moves(store, run_id)
        if row["hash"] is not None
    }
    assert told == {
        ("store", 1): ("a", 0, "members"),
        ("store", 2): ("a", 0, "members"),
        ("store", 5): ("b", 0, "members"),
        ("evict", 1): ("a", 1, "order"),  # two blocks taken, two evicted: in the order of the requests
        ("evict", 2): ("c", 1, "order"),
        ("store", 7): ("c", 1, "members"),
        ("evict", 5): ("d", 2, "order"),  # before the store of d, and a took none
        ("store", 10): ("d", 2, "event"),
        ("store", 11): ("d", 2, "event"),
        ("store", 12): ("d", 2, "event"),
        ("evict", 7): ("e", 2, "order"),  # after the store of d
        ("store", 13): ("e", 2, "event"),
        ("evict", 10): ("f", 3, "only allocation"),
        ("store", 14): ("f", 3, "time"),
        ("evict", 11): (None, 4, "several requests possible"),
        ("hit", 13): ("g", 5, "admission"),
        ("hit", 12): ("h", 5, "event"),
        ("hit", 14): ("h", 5, "event"),
        ("store", 20): (None, None, "outside every recorded pass"),
    }
    shares = {(r["kind"], r["joined_by"]): (r["blocks"], r["share"]) for r in cache.event_links(store, run_id).rows()}
    assert shares["store", "no hash"] == (2, pytest.approx(2 / 12))
    assert shares["evict", "several requests possible"] == (1, pytest.approx(1 / 6))
    identified = [r["identified"] for r in cache.event_links(store, run_id).rows() if r["kind"] == "hit"]
    assert identified == [True, True]


def test_what_is_loaded_from_the_host_is_neither_computed_nor_hit_in_the_pool(root: Path) -> None:
    # a computes 1 and 2; the pool loses 2, of which the host has a copy. b hits 1, loads 2 and computes 3. d hits 2,
    # which was computed once.
    passes = [works(0, ("a", 0, 64)), works(1, ("c", 0, 32)), works(2, ("b", 64, 32)), works(3, ("d", 64, 1))]
    device, host = {"tier": "device"}, {"tier": "host"}
    told = [
        (0, "store", [1, 2], {"pass_index": 0, "request_id": "a"} | device),
        (10, "store", [2, 1], {"pass_index": 0, "request_id": "a"} | host),
        (20, "evict", [2], {"pass_index": 1, "request_id": "c"} | device),
        (20, "store", [7], {"pass_index": 1, "request_id": "c"} | device),
        (30, "evict", [1], {"pass_index": 1, "request_id": "c"} | host),
        (40, "hit", [1], {"pass_index": 2, "request_id": "b"} | device),
        (40, "restore", [2], {"pass_index": 2, "request_id": "b"} | host),
        (40, "store", [3], {"pass_index": 2, "request_id": "b"} | device),
        (60, "hit", [2], {"pass_index": 3, "request_id": "d"} | device),
    ]
    admitted = {"request_id": "b", "ordinal": 0, "time_ns": 40 * MS, "pass_index": 2, "cached_tokens": 64}
    admitted |= {"hit_blocks": 1, "restored_blocks": 1, "is_readmission": False}
    held = {"prompt_block_hashes": [1, 2, 3], "first_admit_ns": 40 * MS, "cached_tokens": 64, "input_tokens": 96}
    rows = [request("a"), request("b", **held), request("c"), request("d")]
    tables = {"passes": passes, "kv_events": events(*told), "admissions": [admitted]}
    run_id = write(root, "m", rows, **tables)
    store = Store([root])
    assert [(row["kind"], row["restored"], row["hash"]) for row in moves(store, run_id)] == [
        ("store", False, 1),
        ("store", False, 2),
        ("evict", False, 2),
        ("store", False, 7),
        ("hit", False, 1),
        ("store", True, 2),
        ("store", False, 3),
        ("hit", False, 2),
    ]
    uses = {row["use"]: (row["blocks"], row["share"]) for row in cache.recompute_totals(store, run_id).rows()}
    assert uses == {
        "computed_first": (4, 1.0),
        "reuse_first": (2, pytest.approx(2 / 3)),
        "reuse_restored": (1, pytest.approx(1 / 3)),
    }
    (turn,) = cache.recompute_turn(store, run_id, Population("profile")).rows()
    assert (turn["computed_blocks"], turn["lost_blocks"], turn["reused_blocks"]) == (4, 0, 3)
    totals = {row["kind"]: row["blocks"] for row in cache.event_totals(store, run_id).rows()}
    assert totals == {"store": 4, "evict": 1, "hit": 2, "restore (host)": 1, "store (host)": 2, "evict (host)": 1}
    (asked,) = of_request.find(store, [run_id], "b/0")
    assert asked is not None
    states = {row["block_index"]: row["state"] for row in of_request.blocks(store, run_id, asked).rows()}
    assert states == {0: "hit", 1: "loaded from the host", 2: "never stored before"}


def test_nothing_is_joined_where_passes_name_no_members(root: Path) -> None:
    stored = events((5, "store", [1], {"pass_index": 0}), (6, "evict", [1], {"pass_index": 0}))
    bare = write(root, "bare", [request("a")], kv_events=stored)
    counted = write(root, "counted", [request("a")], kv_events=stored, passes=[a_pass(0)])
    store = Store([root])
    rules = [[r["joined_by"] for r in cache.event_links(store, run_id).rows()] for run_id in (bare, counted)]
    assert rules == [["no passes recorded"] * 2, ["members of passes not recorded"] * 2]


def test_hits_come_from_admissions_where_no_event_names_them(root: Path) -> None:
    admitted = [
        {"request_id": "b", "ordinal": 0, "time_ns": 10 * MS, "pass_index": 0, "cached_tokens": 64, "hit_blocks": 2}
        | {"is_readmission": False}
    ]
    rows = [request("a"), request("b", prompt_block_hashes=[1, 2, 3])]
    stored = events((1, "store", [1, 2], {"request_id": "a"}))
    run_id = write(root, "m", rows, kv_events=stored, admissions=admitted, passes=[works(0, ("b", 64, 1))])
    found = [
        (r["kind"], r["hash"], r["request_id"], r["rule"]) for r in moves(Store([root]), run_id) if r["kind"] == "hit"
    ]
    assert found == [("hit", 1, "b", "admission"), ("hit", 2, "b", "admission")]


def test_recompute_and_reuse_by_hand(root: Path) -> None:
    rows = [request(n, turn_index=t, ttft=None) for n, t in zip("abcdefgp", (0, 0, 1, 1, 1, 2, 2, 3), strict=True)]
    for row in rows:
        del row["ttft"]
    rows[-1]["preemptions"] = 1
    told = events(
        (1, "store", [1], {"request_id": "a"}),  # first
        (2, "hit", [1], {"request_id": "b"}),  # of the first computation
        (3, "evict", [1], {}),
        (4, "store", [1], {"request_id": "c"}),  # lost
        (5, "hit", [1], {"request_id": "d"}),  # of the second computation
        (6, "store", [1], {"request_id": "e"}),  # although held
        (7, "hit", [9], {"request_id": "d"}),  # stored by no event
        (8, "store", [30], {"request_id": "p"}),  # first
        (9, "preempt", [30], {"request_id": "p"}),
        (10, "evict", [30], {}),
        (11, "store", [30], {"request_id": "p"}),  # its own, after the preemption
        (12, "store", [1], {"request_id": "g", "dp_rank": 1}),  # another rank has it
        (13, "clear", None, {}),
        (14, "store", [1], {"request_id": "f"}),  # lost to the clear
    )
    run_id = write(root, "m", rows, kv_events=told)
    store = Store([root])
    found = {r["use"]: (r["blocks"], r["tokens"]) for r in cache.recompute_totals(store, run_id).rows()}
    assert found == {
        "computed_first": (2, 64),
        "computed_lost": (2, 64),
        "computed_held": (1, 32),
        "computed_preempted": (1, 32),
        "computed_elsewhere": (1, 32),
        "reuse_first": (1, 32),
        "reuse_again": (1, 32),
        "reuse_unseen": (1, 32),
    }
    by_turn = [
        (
            r["turn_index"],
            r["computed_blocks"],
            r["lost_blocks"],
            r["reused_blocks"],
            r["reused_once_blocks"],
            r["preemptions"],
        )
        for r in cache.recompute_turn(store, run_id, HEADLINE).rows()
    ]
    assert by_turn == [(0, 1, 0, 1, 1, 0), (1, 2, 1, 2, 0, 0), (2, 2, 1, 0, 0, 0), (3, 2, 1, 0, 0, 1)]
    over_time = cache.recompute_time(store, run_id)
    assert [over_time.array(f"{name}_blocks").sum() for name in ("computed", "lost", "reused", "reused_once")] == [
        7,
        3,
        3,
        1,
    ]


def test_reuse_change_by_hand(root: Path) -> None:
    measured = write(root, "m", [request("a"), request("b", cached_tokens=0), request("c", cached_tokens=32)])
    replay = write(root, "r", [request("a"), request("b"), request("c", cached_tokens=0), request("x")], kind="replay")
    store = Store([root])
    rows = reuse.change(store, measured, replay, HEADLINE).rows()
    assert [(r["conversation_id"], r["change_tokens"]) for r in rows] == [("b", 32), ("c", -32), ("a", 0)]
    summary = reuse.summary(store, measured, replay, HEADLINE)
    assert (summary.turns, summary.equal_turns, summary.more_turns, summary.less_turns) == (3, 1, 1, 1)
    assert (summary.measured_missed_tokens, summary.replay_missed_tokens) == (32, 32)
    bins = [
        (r["from_tokens"], r["to_tokens"], r["turns"])
        for r in reuse.histogram(store, measured, replay, HEADLINE).rows()
    ]
    assert bins == [(-31, -33, 1), (0, 0, 1), (31, 33, 1)]  # bins of ceil(32 / 15) tokens from 1 on
    cells = reuse.bins(store, measured, replay, HEADLINE).rows()
    assert [(r["measured_tokens"], r["replay_tokens"], r["turns"]) for r in cells] == [
        (0, 32, 1),
        (32, 0, 1),
        (32, 32, 1),
    ]
    ranked = reuse.conversations(store, measured, replay, HEADLINE).rows()
    assert [(r["conversation_id"], r["changed_tokens"]) for r in ranked] == [("b", 32), ("c", 32), ("a", 0)]


def test_why_reuse_differs_by_hand(root: Path) -> None:
    def turn(
        conversation: str, turn_index: int, at_s: float, hashes: list[int] | None, cached: int, **values: Any
    ) -> dict[str, Any]:
        known = {"turn_index": turn_index, "prompt_block_hashes": hashes, "cached_tokens": cached, "input_tokens": 300}
        at = int(at_s * S)
        name = f"{conversation}{turn_index}"
        return request(name, conversation_id=conversation, at=at, released_ns=at + 200 * MS, **known) | values

    ours = [
        turn("c", 0, 0, [1, 2, 3, 4], 0, output_block_hashes=[5]),
        turn("c", 1, 2, [1, 2, 3, 4, 5, 6], 32),  # 2 and 3 were evicted, 4 and 5 lie behind them
        turn("d", 0, 3, [11, 12], 0),  # computes 11 itself, as e is late
        turn("e", 0, 9.5, [11], 0),
        turn("f", 0, 0, [21, 22], 0),
        turn("f", 1, 4, [21, 23], 32),  # another second block than the turn before
        turn("g", 0, 5, [31], 32, input_tokens=40),  # no second block
        turn("h", 0, 6, None, 0),  # its blocks are not known
        turn("i", 0, 9, [41], 0),  # stored and cleared
        turn("j", 0, 9.1, [61], 0, dp_rank=0),  # stored on another rank
        turn("k", 0, 1, [71], 32),
        turn("l", 0, 9.2, [81], 0, worker_id="vllm-0", dp_rank=0),  # stored at another replica
    ]
    theirs = [
        turn("c", 0, 0, [101, 102, 103, 104], 0),
        turn("c", 1, 2, [101, 102, 103, 104, 105, 106], 160),
        turn("d", 0, 3, [111, 112], 32),
        turn("e", 0, 1, [111], 0),
        turn("f", 0, 0, [121, 122], 0),
        turn("f", 1, 4, [121, 123], 64),
        turn("g", 0, 5, [131, 132], 64),
        turn("h", 0, 6, [141], 32),
        turn("i", 0, 9, [151], 32),
        turn("j", 0, 9.1, [161], 32),
        turn("k", 0, 1, [171], 0),  # held, and yet not reused
        turn("l", 0, 9.2, [181], 32),
    ]
    our_events = events(
        (20, "store", [1, 2, 3, 4], {"request_id": "c0"}),
        (20, "store", [21, 22], {"request_id": "f0"}),
        (100, "store", [5], {"request_id": "c0"}),
        (1000, "evict", [2], {}),
        (1000, "evict", [3], {"request_id": "k0"}),
        (2010, "hit", [1], {"request_id": "c1"}),
        (2020, "store", [2, 3], {"request_id": "c1"}),
        (3020, "store", [11], {"request_id": "d0"}),
        (3500, "store", [61], {"request_id": "x", "dp_rank": 1}),
        (3600, "store", [81], {"request_id": "x", "worker_id": "vllm-1", "dp_rank": 0}),
        (7000, "store", [41], {"request_id": "x"}),
        (8000, "clear", None, {}),
    )
    their_events = events((500, "store", [171], {"request_id": "c0"}), (1100, "store", [111], {"request_id": "e0"}))
    measured = write(root, "m", ours, kv_events=our_events)
    replay = write(root, "r", theirs, kind="replay", kv_events=their_events)
    store = Store([root])
    rows = {row["turn"]: row for row in reuse.missing(store, measured, replay, HEADLINE, "measured").rows}
    assert {name: row["reason"] for name, row in rows.items()} == {
        "c/1": "evicted",
        "d/0": "not_stored",
        "f/1": "diverged",
        "g/0": "no_block",
        "h/0": "unknown",
        "i/0": "cleared",
        "j/0": "elsewhere",
        "l/0": "elsewhere",
    }
    first = rows["c/1"]
    assert (first["first_block"], first["missing_blocks"], first["change_tokens"]) == (1, 4, 128)
    assert (first["evicted_blocks"], first["held_blocks"], first["unstored_blocks"]) == (2, 2, 0)
    assert (first["evicted_before_ns"], first["by_turn"]) == (1010 * MS, None)
    assert why(first) == "block 1: evicted before, 1.01 s earlier; by whom is not known: no passes recorded"
    late = rows["d/0"]
    assert (late["by_itself"], late["origin"], late["origin_state"]) == (True, "e/0", "sent later")
    assert why(late) == (
        "block 0: not stored before; first by itself. On the other side e/0 had stored it, which here was: sent later"
    )
    (held,) = reuse.missing(store, measured, replay, HEADLINE, "replay").rows
    assert (held["turn"], held["reason"], held["change_tokens"]) == ("k/0", "held", -32)
    assert not reuse.missing(store, measured, measured, HEADLINE, "replay").rows


def test_block_history_by_hand(root: Path) -> None:
    big = 2**63 + 7
    rows = [
        request("a", conversation_id="c", prompt_block_hashes=[1, big], released_ns=15 * MS),
        request("b", conversation_id="c", turn_index=1, prompt_block_hashes=[1, big, 3], at=S),
        request("x", conversation_id="other", prompt_block_hashes=[1, 9], released_ns=35 * MS),
    ]
    told = events(
        (10, "store", [1, big], {"request_id": "a"}),
        (20, "hit", [1], {"request_id": "x"}),
        (50, "evict", [big], {"request_id": "x"}),
        (60, "store", [9], {"request_id": "x"}),
        (70, "store", [big], {"request_id": "b"}),
    )
    run_id = write(root, "m", rows, kv_events=told)
    store = Store([root])
    found = cache.block_history(store, run_id, "c").rows()
    assert [
        (r["kind"], r["first_block"], r["last_block"], r["turn"], r["own"], r["again"], r["since_last_from_ns"])
        for r in found
    ] == [
        ("store", 0, 1, "c/0", True, False, None),
        ("evict", 1, 1, "other/0", False, False, 35 * MS),  # a was released at 15 ms
        ("store", 1, 1, "c/1", True, True, 20 * MS),
    ]
    lives = cache.block_lives(store, run_id, "c").rows()
    told_of = (
        "block_index",
        "copy",
        "stored_by",
        "own_hits",
        "other_hits",
        "last_used_time_ns",
        "became",
        "evicted_by",
        "age_ns",
    )
    assert [tuple(r[name] for name in told_of) for r in lives] == [
        (0, 1, "c/0", 0, 1, 35 * MS, "held", None, None),
        (1, 1, "c/0", 0, 0, 15 * MS, "evicted", "other/0", 35 * MS),
        (1, 2, "c/1", 0, 0, 70 * MS, "held", None, None),
    ]


def test_a_clear_ends_every_block(root: Path) -> None:
    rows = [request("a", conversation_id="c", prompt_block_hashes=[1])]
    told = events(
        (1, "store", [1], {"request_id": "a"}), (5, "clear", None, {}), (9, "store", [1], {"request_id": "a"})
    )
    run_id = write(root, "m", rows, kv_events=told)
    lives = cache.block_lives(Store([root]), run_id, "c").rows()
    assert [(r["copy"], r["became"], r["gone_time_ns"]) for r in lives] == [(1, "cleared", 5 * MS), (2, "held", None)]


def test_blocks_of_any_number_are_not_followed(samples: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = sample_id("ample8")
    moved = 5286 + 1195 + 21840  # stored, evicted, reused
    monkeypatch.setattr(cache, "FOLLOWED", moved)
    assert len(cache.recompute_totals(samples, run_id))
    monkeypatch.setattr(cache, "FOLLOWED", moved - 1)
    for found in (cache.recompute_totals(samples, run_id), cache.block_lives(samples, run_id, "s0001")):
        assert found.not_recorded is not None
        assert f"moved {moved:,} blocks" in found.not_recorded


def test_blocks_of_an_unknown_size(root: Path) -> None:
    told = events((5, "store", [1], {"pass_index": 0}), (6, "evict", [1], {"pass_index": 0}))
    unsized = identity(capacity__block_size=None)
    run_id = write(root, "m", [request("a")], kv_events=told, passes=[works(0, ("a", 0, 64))], record=unsized)
    store = Store([root])
    assert [r["joined_by"] for r in cache.event_links(store, run_id).rows()] == ["block size unknown"] * 2
    (row,) = cache.recompute_totals(store, run_id).rows()
    assert (row["blocks"], row["tokens"]) == (1, None)


def test_hit_ratio_over_time_and_by_turn_add_up(samples: Store) -> None:
    run_id = sample_id("tight8")
    for found in (cache.hit_ratio_turn(samples, run_id, HEADLINE), cache.hit_ratio_turn(samples, run_id, HEADLINE, 2)):
        reused, prompt = found.array("cached_tokens").sum(), found.array("prompt_tokens").sum()
        assert reused / prompt == pytest.approx(0.618, abs=5e-4)
    over_time = cache.hit_ratio_time(samples, run_id)
    assert over_time.array("requests").sum() == 603  # successes of all phases


STORED = {"ample8": (5286, 1195), "ample8_repeat": (5563, 1474), "tight8": (8703, 8487), "tight8_repeat": (8547, 8327)}
"""Blocks that each recording stored and evicted."""


def test_event_timeline_holds_the_totals(samples: Store) -> None:
    run_id = sample_id("tight8")
    blocks: Counter[str] = Counter()
    for row in cache.event_timeline(samples, run_id).rows():
        blocks[row["kind"]] += row["blocks"] or 0
    assert (blocks["store"], blocks["evict"]) == STORED["tight8"]


def test_the_pool_is_never_overfull(samples: Store) -> None:
    found = cache.pool_occupancy(samples, sample_id("tight8"))
    assert found.array("max_used_blocks").max() <= 223
    assert set(found.array("total_blocks")) == {223}


@pytest.mark.parametrize("name", [*STORED, "ample8-predicted", "tight8-predicted"])
def test_every_block_is_accounted_for(samples: Store, name: str) -> None:
    run_id = sample_id(name)
    found = moves(samples, run_id)
    kinds = Counter(row["kind"] for row in found)
    if name in STORED:
        assert (kinds["store"], kinds["evict"]) == STORED[name]
    held: Counter[int] = Counter()
    for row in found:
        if row["kind"] == "store":
            assert row["held_before"] == held[row["hash"]] == 0  # nothing is computed while it is held
            held[row["hash"]] += 1
        elif row["kind"] != "clear":
            assert held[row["hash"]] > 0, row  # nothing is reused or evicted that is not held
            held[row["hash"]] -= row["kind"] == "evict"
    passes = samples.bundle(run_id).table("passes", ["kv_blocks_cached"]).column(0).to_pylist()
    last = next(count for count in reversed(passes) if count is not None)
    assert last == sum(held.values()) == kinds["store"] - kinds["evict"]
    uses = {row["use"]: row["blocks"] for row in cache.recompute_totals(samples, run_id).rows()}
    computed = {use: blocks for use, blocks in uses.items() if use.startswith("computed")}
    assert sum(computed.values()) == kinds["store"]
    assert computed["computed_first"] == len({row["hash"] for row in found if row["kind"] == "store"})
    assert sum(uses.values()) - sum(computed.values()) == kinds["hit"] + kinds["readmit"]
    links = cache.event_links(samples, run_id).rows()
    assert sum(row["blocks"] for row in links) == kinds.total() - kinds["clear"]
    by_turn = cache.recompute_turn(samples, run_id, Population("all"))
    assert by_turn.array("computed_blocks").sum() == kinds["store"]
    assert by_turn.array("lost_blocks").sum() == kinds["store"] - computed["computed_first"]


def test_what_a_run_of_the_same_content_reuses_needs_no_reason(samples: Store) -> None:
    pair = sample_id("ample8"), sample_id("ample8_repeat")
    for less in ("measured", "replay"):
        assert not reuse.missing(samples, *pair, HEADLINE, less).rows


@pytest.mark.parametrize(("less", "turns", "tokens"), [("measured", "more_turns", 1), ("replay", "less_turns", -1)])
def test_every_turn_that_differs_has_a_reason(samples: Store, less: str, turns: str, tokens: int) -> None:
    pair = sample_id("tight8"), sample_id("tight8-predicted")
    rows = reuse.missing(samples, *pair, HEADLINE, less).rows
    summary = reuse.summary(samples, *pair, HEADLINE)
    assert len(rows) == getattr(summary, turns)
    assert tokens * sum(row["change_tokens"] for row in rows) == getattr(summary, f"{less}_missed_tokens")
    for row in rows:
        assert row["missing_blocks"] == abs(row["change_tokens"]) // 32
        assert row["reason"] == "evicted", row  # a small pool, and equal content: nothing else can end reuse
        assert row["evicted_before_ns"] >= 0


@pytest.fixture(scope="module")
def unnamed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, str]:
    """The replay of tight8 without what it knows of its events: requests and ages."""
    bundle = Store([SAMPLES]).bundle(sample_id("tight8-predicted"))
    folder = tmp_path_factory.mktemp("unnamed")
    with BundleWriter(folder, "replay", "unnamed", "unnamed", bundle.identity) as writer:
        for name in ("requests", "passes", "admissions", "kv_events"):
            table = bundle.table(name)
            if name == "kv_events":
                for column in ("request_id", "age_ns"):
                    at = table.column_names.index(column)
                    empty = pa.nulls(table.num_rows, table.schema.field(at).type)
                    table = table.set_column(at, table.schema.field(at), empty)
            writer.write_table(name, table)
        run_id = writer.seal(phases=bundle.phases)
    return Store([folder]), run_id


def test_joins_without_names_are_never_wrong(samples: Store, unnamed: tuple[Store, str]) -> None:
    def keyed(rows: list[dict[str, Any]]) -> dict[tuple[str, int, int], str | None]:
        seen: Counter[tuple[str, int]] = Counter()
        found = {}
        for row in rows:
            key = row["kind"], row["hash"]
            seen[key] += 1
            found[*key, seen[key]] = row["request_id"]
        return found

    known, guessed = keyed(moves(samples, sample_id("tight8-predicted"))), keyed(moves(*unnamed))
    assert known.keys() == guessed.keys()
    stores = {key: name for key, name in guessed.items() if key[0] == "store"}
    evictions = {key: name for key, name in guessed.items() if key[0] == "evict"}
    assert all(name == known[key] for key, name in stores.items())
    told = {key: name for key, name in evictions.items() if name is not None}
    assert all(name == known[key] for key, name in told.items())
    assert len(told) / len(evictions) > 0.9


def test_the_age_of_an_eviction_is_what_the_replay_recorded(samples: Store, unnamed: tuple[Store, str]) -> None:
    conversation = "s0084"  # much of it is evicted and computed again
    store, run_id = unnamed
    recorded = cache.block_lives(samples, sample_id("tight8-predicted"), conversation).array("age_ns")
    worked_out = cache.block_lives(store, run_id, conversation).array("age_ns")
    assert len(recorded) > 100
    assert recorded.tolist() == pytest.approx(worked_out.tolist(), nan_ok=True)


def test_nothing_is_hit_before_it_is_stored(samples: Store) -> None:
    run_id = sample_id("tight8")
    turn = cohort.lanes(samples, run_id).rows()[100]
    found = cache.block_history(samples, run_id, turn["conversation_id"]).rows()
    assert found
    held: dict[int, bool] = {}
    for row in found:
        for block in range(row["first_block"], row["last_block"] + 1):
            assert row["kind"] == "store" or held.get(block), row
            held[block] = row["kind"] != "evict"
