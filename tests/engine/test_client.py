"""Timelines of the closed-loop client, worked out by hand. All times in ms; a request takes 100 ms unless said."""

from __future__ import annotations

import pytest

from engine.errors import GapscopeError
from tests.engine.client_harness import MS, Request, settle, talk, trace_of, turn


def times(rows: list[Request]) -> dict[str, tuple[float, float]]:
    """Dispatch and end by request."""
    return {r.name: (r.dispatched, r.end) for r in rows}


def test_turns_follow_each_other_after_their_think_time() -> None:
    rows, client = settle(trace_of([talk("a", turn("a0", think_ms=10), turn("a1", think_ms=30))]), {"lanes": 1})
    assert times(rows) == {"a/0": (10, 110), "a/1": (140, 240)}
    assert [r.scheduled for r in rows] == [10, 140]
    assert client.never_issued == 0


def test_two_strided_lanes_with_stagger_take_every_other_play() -> None:
    trace = trace_of(*[[talk(n, turn(n))] for n in "abcd"])
    rows, _ = settle(trace, {"lanes": 2, "lane_stagger_ms": 30})
    assert times(rows) == {"a/0": (0, 100), "b/0": (30, 130), "c/0": (100, 200), "d/0": (130, 230)}
    assert {r.name: r.lane for r in rows} == {"a/0": 0, "b/0": 1, "c/0": 0, "d/0": 1}


def test_strided_lanes_do_not_help_each_other_out_but_a_cursor_does() -> None:
    trace = trace_of(*[[talk(n, turn(n))] for n in "abcd"])
    slow = lambda name: 500.0 if name == "b/0" else 100.0  # noqa: E731
    strided, _ = settle(trace, {"lanes": 2}, slow)
    assert {r.name: r.lane for r in strided} == {"a/0": 0, "b/0": 1, "c/0": 0, "d/0": 1}
    assert times(strided)["d/0"] == (500, 600)
    cursor, _ = settle(trace, {"lanes": 2, "lane_assignment": "cursor"}, slow)
    assert {r.name: r.lane for r in cursor} == {"a/0": 0, "b/0": 1, "c/0": 0, "d/0": 0}
    assert times(cursor)["d/0"] == (200, 300)


def test_a_lane_that_starts_late_finds_the_cursor_where_the_others_left_it() -> None:
    trace = trace_of(*[[talk(n, turn(n))] for n in "abcd"])
    rows, _ = settle(trace, {"lanes": 2, "lane_assignment": "cursor", "lane_stagger_ms": 150})
    # Lane 0 takes a at 0 and b at 100; lane 1 takes c at 150; lane 0 takes d at 200.
    assert {r.name: (r.lane, r.dispatched) for r in rows} == {
        "a/0": (0, 0),
        "b/0": (0, 100),
        "c/0": (1, 150),
        "d/0": (0, 200),
    }


def test_children_start_when_the_response_ended_and_the_parent_joins_on_all_of_them() -> None:
    play = [
        talk("r", turn("r0", spawn=("k1", "k2")), turn("r1", think_ms=50)),
        talk("k1", turn("k1.0", think_ms=5), turn("k1.1"), parent="r", after=0, depth=1),
        talk("k2", turn("k2.0", think_ms=20), parent="r", after=0, depth=1),
    ]
    rows, _ = settle(trace_of(play, [talk("next", turn("n"))]), {"lanes": 1})
    assert times(rows) == {
        "r/0": (0, 100),
        "k1/0": (105, 205),
        "k2/0": (120, 220),
        "k1/1": (205, 305),
        "r/1": (355, 455),  # 305, when the last child ended, and 50 of think time
        "next/0": (455, 555),
    }


def test_a_lane_waits_for_children_of_the_last_turn_and_for_their_children() -> None:
    play = [
        talk("r", turn("r0", spawn=("k",))),
        talk("k", turn("k0", spawn=("g",)), parent="r", after=0, depth=1),
        talk("g", turn("g0"), parent="k", after=0, depth=2),
    ]
    rows, _ = settle(trace_of(play, [talk("next", turn("n"))]), {"lanes": 1})
    assert times(rows) == {"r/0": (0, 100), "k/0": (100, 200), "g/0": (200, 300), "next/0": (300, 400)}


def test_a_fork_starts_from_the_whole_context_of_its_parent_and_a_fresh_child_from_nothing() -> None:
    play = [
        talk("r", turn("r0", 20, 5, spawn=("f", "n")), turn("r1", 10, 1)),
        talk("f", turn("f0", 7, 2), turn("f1", 3, 1), parent="r", after=0, fork=True, depth=1),
        talk("n", turn("n0", 8, 2), parent="r", after=0, depth=1),
    ]
    rows, client = settle(trace_of(play), {"lanes": 1, "block_size": 4})
    sent = client.sent
    prompts = {r.name: c.walk.prompt_tokens[t] for r, c, t in zip(rows, sent.conversation, sent.turn, strict=True)}
    assert prompts == {"r/0": 20, "f/0": 32, "n/0": 8, "f/1": 37, "r/1": 35}
    keys = {r.name: list(c.walk.keys[t]) for r, c, t in zip(rows, sent.conversation, sent.turn, strict=True)}
    assert keys["f/0"][:6] == keys["r/0"][:6]  # 24 of the 25 tokens of the parent's context are full blocks
    assert keys["f/0"][6] != keys["r/1"][6]  # the seventh holds the parent's last token and then other input
    assert not set(keys["n/0"]) & set(keys["r/0"])


def test_warm_up_runs_before_time_zero_and_goes_on_into_the_profile() -> None:
    trace = trace_of([talk("a", *(turn(f"a{k}", think_ms=50) for k in range(3)))])
    rows, client = settle(trace, {"lanes": 1, "warmup_s": 0.2, "duration_s": 10})
    assert client.start_ns == -200 * MS
    assert times(rows) == {"a/0": (-150, -50), "a/1": (0, 100), "a/2": (150, 250)}


def test_nothing_is_sent_at_or_after_the_admission_deadline() -> None:
    trace = trace_of([talk("a", turn("a0"), turn("a1", think_ms=100), turn("a2"))], [talk("b", turn("b0"))])
    just, client = settle(trace, {"lanes": 1, "duration_s": 0.2001, "grace_s": 1})
    assert times(just) == {"a/0": (0, 100), "a/1": (200, 300)}
    assert client.never_issued == 1  # a/2; the play of b was never started
    at, client = settle(trace, {"lanes": 1, "duration_s": 0.2, "grace_s": 1})
    assert times(at) == {"a/0": (0, 100)}
    assert client.never_issued == 2


def test_dispatch_lag_counts_against_the_deadline() -> None:
    trace = trace_of([talk("a", turn("a0", think_ms=95))])
    assert len(settle(trace, {"lanes": 1, "duration_s": 0.1, "dispatch_lag_ms": 4})[0]) == 1
    assert len(settle(trace, {"lanes": 1, "duration_s": 0.1, "dispatch_lag_ms": 5})[0]) == 0


def test_after_the_grace_what_is_in_flight_is_canceled_and_ends_its_conversation() -> None:
    trace = trace_of([talk("a", turn("a0", think_ms=60), turn("a1"))], [talk("b", turn("b0", think_ms=90), turn("b1"))])
    rows, client = settle(trace, {"lanes": 2, "duration_s": 0.1, "grace_s": 0.075})
    assert times(rows) == {"a/0": (60, 160), "b/0": (90, 175)}  # b would have ended at 190
    assert [r.ok for r in rows] == [True, False]
    assert client.never_issued == 2
    assert client.aborts(10_000 * MS) == []


def test_a_canceled_child_leaves_its_parent_unsent() -> None:
    play = [talk("r", turn("r0", spawn=("k",)), turn("r1")), talk("k", turn("k0"), parent="r", after=0)]
    rows, client = settle(trace_of(play), {"lanes": 1, "duration_s": 0.15, "grace_s": 0})
    assert [(r.name, r.end, r.ok) for r in rows] == [("r/0", 100, True), ("k/0", 150, False)]
    assert client.never_issued == 1


def test_latencies_shift_signals_and_what_follows_from_them() -> None:
    trace = trace_of([talk("a", turn("a0", think_ms=10), turn("a1", think_ms=10))])
    latencies = {"dispatch_lag_ms": 1, "request_latency_ms": 4, "response_latency_ms": 8}
    rows, _ = settle(trace, {"lanes": 1, **latencies})
    # Scheduled at 10, sent at 11, at the engine at 15, its last pass ends at 115, seen at 123.
    assert [(r.scheduled, r.dispatched, r.end) for r in rows] == [(10, 11, 123), (133, 134, 246)]


def test_a_response_still_on_its_way_at_the_cancel_is_canceled() -> None:
    trace = trace_of([talk("a", turn("a0"), turn("a1"))])
    rows, _ = settle(trace, {"lanes": 1, "duration_s": 0.05, "grace_s": 0.055, "response_latency_ms": 8})
    assert [(r.end, r.ok) for r in rows] == [(105, False)]


def test_think_times_scale() -> None:
    rows, _ = settle(trace_of([talk("a", turn("a0", think_ms=30))]), {"lanes": 1, "think_scale": 0.5})
    assert rows[0].dispatched == 15


def test_wrapping_starts_the_trace_again_with_new_names() -> None:
    trace = trace_of([talk("a", turn("a0"))], [talk("b", turn("b0"))])
    for assignment in ("strided", "cursor"):
        changes = {"lanes": 1, "wrap": True, "duration_s": 0.45, "grace_s": 1, "lane_assignment": assignment}
        rows, _ = settle(trace, changes)
        assert [r.name for r in rows] == ["a/0", "b/0", "a#1/0", "b#1/0", "a#2/0"]


@pytest.mark.parametrize(("policy", "shared"), [("none", True), ("play", False)])
def test_the_cache_bust_policy_says_whether_a_repeated_play_has_the_same_content(policy: str, shared: bool) -> None:
    trace = trace_of([talk("a", turn("a0", 64))])
    changes = {"lanes": 1, "wrap": True, "duration_s": 0.15, "grace_s": 1, "cache_bust": policy}
    _, client = settle(trace, changes)
    first, second = (c.walk.keys[0] for c in client.sent.conversation)
    assert (list(first) == list(second)) is shared
    assert bool(set(first) & set(second)) is shared


def test_more_lanes_than_plays_leave_lanes_idle_unless_the_trace_wraps() -> None:
    trace = trace_of([talk("a", turn("a0"))])
    assert [r.name for r in settle(trace, {"lanes": 3})[0]] == ["a/0"]
    wrapped, _ = settle(trace, {"lanes": 3, "wrap": True, "duration_s": 0.05, "grace_s": 1})
    assert [r.name for r in wrapped] == ["a/0", "a#1/0", "a#2/0"]


def test_recorded_arrivals_start_plays_whatever_the_load() -> None:
    trace = trace_of([talk("a", turn("a0"), turn("a1"))], [talk("b", turn("b0"))], [talk("c", turn("c0"))])
    for play, at in zip(trace.plays, (500, 530, 510), strict=True):
        play.arrival_ns = at * MS
    rows, _ = settle(trace, {"lanes": 1, "arrivals": "trace", "warmup_s": 0.02})
    assert times(rows) == {"a/0": (-20, 80), "c/0": (-10, 90), "b/0": (10, 110), "a/1": (80, 180)}


def test_wrap_without_an_end_is_refused() -> None:
    with pytest.raises(GapscopeError, match="wrap=true needs an end"):
        settle(trace_of([talk("a", turn("a0"))]), {"wrap": True})


def test_arrivals_of_a_trace_without_any_are_refused() -> None:
    trace = trace_of([talk("a", turn("a0"))], [talk("b", turn("b0"))])
    trace.plays[0].arrival_ns = 5
    with pytest.raises(GapscopeError, match=r"1 of the 2 plays of .* have no arrival time"):
        settle(trace, {"arrivals": "trace"})
