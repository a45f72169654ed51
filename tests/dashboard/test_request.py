"""One source-turn on both sides, counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import MS, S, a_pass, request, write

from dashboard.charts.requests import request as charts
from dashboard.charts.requests import request_blocks, request_time
from dashboard.charts.requests.request_time import Stretch, merged, stretches
from dashboard.charts.style import ROLES
from dashboard.frame import Frame, Side
from dashboard.metrics import HEADLINE, METRICS, Estimator, Population, Window
from dashboard.queries import request as queries
from dashboard.store import Store
from dashboard.view import turn_key


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def frame_of(store: Store, *run_ids: str) -> Frame:
    sides = [Side(role, store.bundle(run_id)) for role, run_id in zip(ROLES, run_ids, strict=False)]
    return Frame(sides[0], tuple(sides[1:]), HEADLINE, Estimator.LINEAR, Window.FIXED)


def member(request_id: str, before: int, tokens: int) -> dict[str, Any]:
    return {"request_id": request_id, "computed_before": before, "scheduled_tokens": tokens}


def batch(index: int, *members: dict[str, Any], **values: Any) -> dict[str, Any]:
    """A pass that begins at 20 ms times its index and lasts 10 ms."""
    decodes = sum(one["scheduled_tokens"] == 1 for one in members)
    new = sum(one["scheduled_tokens"] for one in members if one["scheduled_tokens"] > 1)
    row = {"num_decode_requests": decodes, "sum_prefill_tokens": new, "num_prefill_requests": len(members) - decodes}
    return a_pass(index, members=list(members), **row, **values)


def test_a_name_is_that_of_the_request_in_a_replay() -> None:
    assert (turn_key("s0003", 2), turn_key("s0003.c1", 0, 1)) == ("s0003/2", "s0003.c1#1/0")


def test_turns_are_paired_by_their_whole_key_and_ordered_by_difference(root: Path) -> None:
    def long(name: str, ms: int, **values: Any) -> dict[str, Any]:
        return request(name, last_visible_ns=values.get("at", 0) + ms * MS, **values)

    left = [long("a", 200), long("b", 200), long("again", 300, conversation_id="a", at=S)]
    right = [long("a", 210), long("b", 150), long("new", 700), long("gone", 100)]
    measured = write(root, "m", [*left, long("gone", 900, status="canceled")])
    elsewhere = long("x", 190, conversation_id="b", source_trace_id="other")
    replay = write(root, "r", [*right, elsewhere], kind="replay")
    store = Store([root])
    rows = queries.turns(store, measured, replay, HEADLINE, METRICS["e2e"]).rows()
    assert [(row["turn"], row["difference"]) for row in rows] == [
        ("b/0", -50 * MS),
        ("a/0", 10 * MS),
        ("gone/0", -800 * MS),  # no success on both sides
        ("new/0", None),
        ("a#1/0", None),
        ("b/0", None),  # of another trace
    ]
    assert [row["measured_status"] for row in rows] == ["ok", "ok", "canceled", None, "ok", None]
    first, second = queries.find(store, [measured, replay], "a#1/0")
    assert first is not None
    assert (first.request_id, second) == ("again", None)
    left, right = queries.find(store, [measured, replay], "b/0")
    assert left is not None
    assert right is not None
    assert (left.request_id, left.namesakes, right.request_id, right.namesakes) == ("b", 0, "b", 1)
    assert queries.find(store, [measured, replay], "b") == [None, None]
    only = [row["turn"] for row in queries.turns(store, measured, replay, Population("warmup"), METRICS["e2e"]).rows()]
    assert only == []


def test_requests_without_a_turn_go_by_their_id(root: Path) -> None:
    run = write(root, "m", [request("q", conversation_id=None), request("p", turn_index=None)])
    store = Store([root])
    assert {row["turn"] for row in queries.turns(store, run, run, HEADLINE, METRICS["ttft"]).rows()} == {"=q", "=p"}
    (found,) = queries.find(store, [run], "=q")
    assert found is not None
    assert found.request_id == "q"


PASSES = [
    batch(0, member("z", 9, 1)),  # over before the request is dispatched
    batch(2, member("z", 10, 1)),  # the request waits
    batch(3, member("z", 11, 1), member("a", 32, 20)),
    batch(4, member("z", 12, 1), member("a", 52, 13)),
    batch(5, member("a", 65, 1), member("b", 0, 200), member("nobody", 7, 9)),  # the client's record does not have it
    batch(6, member("b", 200, 1)),  # it has no place
    batch(7, member("a", 66, 1), member("b", 201, 1)),
    batch(8, member("b", 202, 1)),  # it was preempted
    batch(9, member("a", 32, 35), member("b", 203, 1)),
    batch(10, member("a", 67, 1)),
    batch(11, member("b", 204, 1)),  # after its last
]
OF_A = {
    "at": 30 * MS,
    "received_ns": 35 * MS,
    "first_admit_ns": 60 * MS,
    "last_visible_ns": 215 * MS,
    "end_ns": 230 * MS,
}


def test_the_life_of_a_request_by_hand(root: Path) -> None:
    others = [request("z", at=-S, input_tokens=9), request("b", at=90 * MS, input_tokens=200)]
    run = write(root, "m", [request("a", **OF_A), *others], passes=PASSES)
    store = Store([root])
    (one,) = queries.find(store, [run], "a/0")
    assert one is not None
    passes = queries.passes_of(store, run, one).rows()
    assert [row["pass_index"] for row in passes] == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    found = [(s.kind, s.start_ns // MS, s.end_ns // MS, s.tokens) for s in stretches(one.row, passes)]
    assert found == [
        ("way", 30, 35, 0),
        ("waiting", 35, 60, 0),
        ("prefill", 60, 70, 20),
        ("prefill", 80, 90, 13),
        ("beside", 100, 110, 1),  # b prefills 200 tokens
        ("unscheduled", 110, 140, 0),
        ("decode", 140, 150, 1),
        ("preempted", 150, 180, 0),
        ("again", 180, 190, 35),
        ("decode", 200, 210, 1),
        ("output", 210, 215, 0),
    ]
    shared = {row["turn"]: row for row in queries.neighbours(store, run, one).rows()}
    told = ("passes", "new_tokens", "prefill_passes", "decode_passes")
    assert {turn: tuple(row[name] for name in told) for turn, row in shared.items()} == {
        "z/0": (2, 0, 0, 2),
        "b/0": (3, 200, 1, 2),
        "=nobody": (1, None, None, None),
    }


def test_many_decode_passes_are_joined_and_nothing_is_lost() -> None:
    found = [Stretch("prefill", 0, 5, 1, 9), *(Stretch("decode", 10 * k, 10 * k + 5, 1, 1) for k in range(1, 8))]
    joined = merged(found, most=3)
    assert [(one.kind, one.start_ns, one.end_ns, one.passes, one.tokens) for one in joined] == [
        ("prefill", 0, 5, 1, 9),
        ("decode", 10, 35, 3, 3),
        ("decode", 40, 65, 3, 3),
        ("decode", 70, 75, 1, 1),
    ]
    assert merged(found) == found


def test_ranks_that_the_request_was_not_on_are_left_out(root: Path) -> None:
    mine = [batch(k, member("a", 0, 1), worker_id="w", dp_rank=0) for k in (1, 2)]
    other = [batch(k + 10, member("b", 0, 1), worker_id="w", dp_rank=1, start_ns=k * 20 * MS) for k in (1, 2)]
    run = write(root, "m", [request("a"), request("b", at=MS)], passes=[*mine, *other])
    store = Store([root])
    (one,) = queries.find(store, [run], "a/0")
    assert one is not None
    assert {row["dp_rank"] for row in queries.passes_of(store, run, one).rows()} == {0}


def test_blocks_say_why_they_were_not_there(root: Path) -> None:
    def event(index: int, ms: int, kind: str, hashes: list[int], name: str | None = None) -> dict[str, Any]:
        row = {"event_index": index, "time_ns": ms * MS, "kind": kind, "num_blocks": len(hashes)}
        return row | {"block_hashes": hashes, "request_id": name}

    rows = [
        request("a", at=S, first_admit_ns=S + 10 * MS, prompt_block_hashes=[1, 2, 3, 4, 5], cached_tokens=64),
        request("b", prompt_block_hashes=[1, 2, 3, 4]),
    ]
    events = [
        event(0, 20, "store", [1, 2, 3, 4], "b"),
        event(1, 500, "evict", [3]),
        event(2, 1020, "store", [3, 5], "a"),
        event(3, 2000, "evict", [1, 5]),
    ]
    run = write(root, "m", rows, kv_events=events)
    store = Store([root])
    frame = frame_of(store, run)
    chosen = charts.choose(frame, store, "a/0")
    told = ("block_index", "state", "stored_by", "evicted_after_ns")
    (one,) = [request for _, request in chosen.sides]
    assert [tuple(row[name] for name in told) for row in queries.blocks(store, run, one).rows()] == [
        (0, "hit", "b/0", 2 * S),  # 64 tokens are two blocks of 32
        (1, "hit", "b/0", None),
        (2, "evicted before", "b/0", None),
        (3, "held, not hit", "b/0", None),
        (4, "never stored before", None, 2 * S),
    ]
    answer, figure, words = request_blocks.blocks(frame, store, chosen)
    assert words.endswith("5 full blocks, 2 hit, 1 held, not hit, 1 evicted before, 1 never stored before")
    assert [(list(t["base"]), list(t["x"])) for t in figure["data"]] == [([0], [2]), ([3], [1]), ([2], [1]), ([4], [1])]
    assert answer.n == {run: 5}


def test_blocks_are_followed_in_the_order_of_the_scheduler(root: Path) -> None:
    """Evicted before a store was seen, or in the pass of the admission and published at its end, or cleared."""

    def event(index: int, ms: int, kind: str, hashes: list[int] | None, **values: Any) -> dict[str, Any]:
        row = {"event_index": index, "time_ns": ms * MS, "kind": kind, "num_blocks": len(hashes or [])}
        return row | {"block_hashes": hashes} | values

    rows = [
        request("c", at=80 * MS, first_admit_ns=100 * MS, prompt_block_hashes=[6], cached_tokens=0),
        request("z", at=180 * MS, first_admit_ns=200 * MS, prompt_block_hashes=[8, 9], cached_tokens=0),
        request("a", at=190 * MS, first_admit_ns=200 * MS, prompt_block_hashes=[1, 2, 3], cached_tokens=32),
        request("b", at=-S, prompt_block_hashes=[1, 2, 6]),
    ]
    passes = [batch(5, member("c", 0, 32)), batch(10, member("z", 0, 64), member("a", 32, 64))]
    events = [
        event(0, 10, "store", [6], request_id="b"),
        event(1, 20, "clear", None),
        event(2, 30, "store", [1, 2], request_id="b"),
        event(3, 40, "evict", [3]),
        event(4, 109, "store", [6], request_id="c", pass_index=5),
        event(5, 200, "hit", [1], request_id="a", pass_index=10),
        event(6, 209, "evict", [2], pass_index=10),  # z, which comes first in the batch, takes its room
        event(7, 209, "store", [8, 9], request_id="z", pass_index=10),
        event(8, 209, "store", [2, 3], request_id="a", pass_index=10),
    ]
    run = write(root, "m", rows, passes=passes, kv_events=events)
    store = Store([root])
    told = ("block_index", "state", "stored_by", "evicted_before_ns", "stored_again_ns", "evicted_after_ns")

    def of(turn: str) -> list[tuple[Any, ...]]:
        (one,) = queries.find(store, [run], turn)
        assert one is not None
        return [tuple(row[name] for name in told) for row in queries.blocks(store, run, one).rows()]

    assert of("a/0") == [
        (0, "hit", "b/0", None, None, None),
        (1, "evicted before", "b/0", 200 * MS, 200 * MS, None),  # the pass begins then
        (2, "evicted before", None, 40 * MS, 200 * MS, None),
    ]
    assert of("c/0") == [(0, "evicted before", "b/0", None, 100 * MS, None)]


def test_both_sides_in_words_and_boundaries(root: Path) -> None:
    chunks = [
        {"request_id": "a", "ordinal": k, "time_ns": 90 * MS + k * 25 * MS, "tokens": 2, "visible": True}
        for k in (0, 1)
    ]
    measured = write(root, "m", [request("a", **OF_A), request("b", at=90 * MS)], passes=PASSES, chunks=chunks)
    replayed = [request("a", status="canceled", output_tokens=0, first_visible_ns=None, last_visible_ns=None)]
    replay = write(root, "r", replayed, kind="replay")
    store = Store([root])
    frame = frame_of(store, measured, replay)
    chosen = charts.choose(frame, store, "a/0")
    assert charts.states(chosen) == [
        f"Replay {replay}: it was canceled, 181 ms after its dispatch, with no token of output."
    ]
    rows = {row["boundary"]: row for row in charts.boundaries(frame, store, chosen).rows.to_pylist()}
    assert rows["received by the engine"] == {
        "boundary": "received by the engine", "measured": 5.0, "replay": 5.0, "difference": 0.0, "noise": None,
        "against": "unknown",
    }  # fmt: skip
    assert (rows["first pass begins"]["measured"], rows["first pass begins"]["replay"]) == (30.0, None)
    assert rows["first visible"]["difference"] is None
    assert request_time.silences(store, chosen) == [f"Not recorded: run {replay} has no table passes."]
    others, words = charts.neighbours(frame, store, chosen)
    assert "measured_passes" in others.rows.column_names
    assert (set(others.rows.column_names) & {"replay_passes", "difference"}, words) == (set(), "")
    answer, figure = request_time.tokens(frame, store, chosen)
    (curve,) = figure["data"]
    assert (list(curve["x"]), list(curve["y"])) == ([0, 60, 85], [0, 2, 4])
    assert answer.n == {measured: 2, replay: None}
    lone = charts.choose(frame, store, "b/0")
    assert charts.states(lone) == [f"Replay {replay} never sent this source-turn."]
    answer, figure = request_time.timeline(frame, store, chosen)
    assert answer.n == {measured: 6, replay: None}
    waiting = next(trace for trace in figure["data"] if trace["name"] == "waiting for admission")
    assert (list(waiting["y"]), list(waiting["base"]), list(waiting["x"])) == (["measured", "replay"], [5, 5], [25, 5])


def test_the_noise_of_a_turn_is_its_move_in_the_repeats(root: Path) -> None:
    measured = write(root, "m", [request("a")])
    write(root, "m2", [request("a2", conversation_id="a", first_visible_ns=130 * MS, last_visible_ns=185 * MS)])
    replayed = request("a", first_visible_ns=120 * MS, last_visible_ns=200 * MS)
    replay = write(root, "r", [replayed], kind="replay")
    store = Store([root])
    frame = frame_of(store, measured, replay)
    rows = charts.boundaries(frame, store, charts.choose(frame, store, "a/0")).rows.to_pylist()
    found = {row["boundary"]: (row["difference"], row["noise"], row["against"]) for row in rows}
    assert found["first visible"] == (20.0, 30.0, "~ inside")  # 100 ms, 120 in the replay, 130 in the repeat
    assert found["last visible"] == (20.0, 5.0, "outside")
    assert found["first pass begins"] == (None, None, None)


def test_batches_that_nobody_wrote_down_are_said(root: Path) -> None:
    run = write(root, "m", [request("a")], passes=[a_pass(k) for k in range(9)])
    store = Store([root])
    frame = frame_of(store, run)
    chosen = charts.choose(frame, store, "a/0")
    (said,) = request_time.silences(store, chosen)
    assert "who was in which pass was not recorded" in said
    answer, figure = request_time.timeline(frame, store, chosen)
    assert answer.rows.num_rows == 9
    assert {trace["name"] for trace in figure["data"]} >= {"waiting for admission", "first visible"}
    assert charts.neighbours(frame, store, chosen)[0].rows.num_rows == 0
