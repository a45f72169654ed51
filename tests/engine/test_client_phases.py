"""Cut trajectories, primers, warm-up and the barrier, worked out by hand. All times in ms; a request takes 100 ms."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine import knobs
from engine.bundle import Bundle, open_bundle
from engine.replay import knobs_from_run, replay, simulate
from engine.replay.origin import DURATIONS
from engine.timing import build_timing
from engine.traces import load_trace
from engine.traces.tree import Conversation, Trace, Turn
from engine.workload.cut import cut_by_span, cut_by_turns
from engine.workload.draws import uniform
from engine.workload.graph import PlayGraph
from tests.engine.client_harness import MS, settle, talk, trace_of, turn
from tests.engine.public_files import PUBLIC
from tests.engine.test_client import times
from tests.engine.test_client_edges import edge, random_graph, waits
from tests.engine.test_replay_digests import digests


def recorded(made: Turn, start: float, took: float | None) -> Turn:
    made.start_ns = round(start * MS)
    made.api_ns = None if took is None else round(took * MS)
    return made


def session() -> list[Conversation]:
    """Root turns at 0, 1000, 2000, 3000, each for 300; the second dispatch spawns a child with turns at 1100 and 2500.

    So each next turn of the root comes 700 after the end before, the child's second 1300 after the end of its first.
    """
    root = [
        recorded(waits(turn("r0")), 0, 300),
        recorded(waits(turn("r1", spawn=("k",)), edge("r", 0, delay_ms=700)), 1000, 300),
        recorded(waits(turn("r2"), edge("r", 1, delay_ms=700)), 2000, 300),
        recorded(waits(turn("r3"), edge("r", 2, delay_ms=700), edge("k", 1, delay_ms=400)), 3000, 300),
    ]
    child = [
        recorded(waits(turn("k0"), edge("r", 1, "dispatch", 100, "spawn")), 1100, 100),
        recorded(waits(turn("k1"), edge("k", 0, delay_ms=1300)), 2500, 100),
    ]
    return [talk("r", *root), talk("k", *child, parent="r", after=1, depth=1)]


def names(graph: PlayGraph, nodes: list[int]) -> list[str]:
    return [f"{graph.play.conversations[graph.conversation[n]].conversation_id}/{graph.turn[n]}" for n in nodes]


def test_a_cut_by_span_leaves_timers_of_what_history_had_started() -> None:
    graph = PlayGraph(trace_of(session()).plays[0])
    cut = cut_by_span(graph, 0.4)  # at 1200 of 3000: r/1 is running until 1300, k/0 was done just then
    assert cut.at_ns == 1200 * MS
    assert names(graph, [n for n, gone in enumerate(cut.history) if gone]) == ["r/0", "r/1", "k/0"]
    assert names(graph, cut.primers) == ["r/1", "k/0"]
    # r/2 is due at 1300 + 700, k/1 at 1200 + 1300; r/3 waits for both.
    due = dict(zip(names(graph, list(range(6))), cut.due_ns, strict=True))
    assert (due["r/2"], due["k/1"], due["r/3"]) == (800 * MS, 1300 * MS, 0)
    assert dict(zip(names(graph, list(range(6))), cut.waits, strict=True))["r/3"] == 2
    assert cut.retained == 3


def test_without_a_recorded_duration_a_turn_is_due_when_it_started() -> None:
    play = session()
    play[0].turns[1].api_ns = None
    graph = PlayGraph(trace_of(play).plays[0])
    assert cut_by_span(graph, 0.4).due_ns[2] == 800 * MS  # r/2 started at 2000
    play[0].turns[2].start_ns = 2050 * MS
    assert cut_by_span(PlayGraph(trace_of(play).plays[0]), 0.4).due_ns[2] == 850 * MS


def test_the_first_request_is_never_history_where_all_start_at_once() -> None:
    play = [talk("a", *(recorded(waits(turn(f"a{k}")), 50, 10) for k in range(3)))]
    cut = cut_by_span(PlayGraph(trace_of(play).plays[0]), 0.9)
    assert cut.retained == 3
    assert cut.primers == []


def test_a_cut_by_turns_takes_a_share_of_the_root_and_all_that_it_spawned() -> None:
    graph = PlayGraph(trace_of(session()).plays[0])
    cut = cut_by_turns(graph, 0.6)  # 2 of 4 turns
    assert names(graph, [n for n, gone in enumerate(cut.history) if gone]) == ["r/0", "r/1", "k/0", "k/1"]
    assert names(graph, cut.primers) == ["r/1"]  # the child does not go on
    due = dict(zip(names(graph, list(range(6))), cut.due_ns, strict=True))
    # The whole delay after the cut; r/3 waits for r/2 alone, as k/1 is history, 400 after the cut at the earliest.
    assert (due["r/2"], due["r/3"]) == (700 * MS, 400 * MS)
    assert cut_by_turns(graph, 0.999).retained == 1
    assert cut_by_turns(graph, 0.0).retained == 6


def cut_at(share: float, **more: Any) -> dict[str, Any]:
    return {"lanes": 1, "cut": "span", "cut_from": share, "cut_to": share, **more}


def test_a_lane_goes_on_from_the_cut_and_later_plays_start_at_their_beginning() -> None:
    other = [talk("o", recorded(turn("o0"), 0, 10), recorded(turn("o1", think_ms=5), 20, 10))]
    rows, client = settle(trace_of(session(), other), cut_at(0.4))
    # r/3 is due 700 after r/2 at 900, and 400 after k/1 at 1400.
    assert times(rows) == {
        "r/2": (800, 900),
        "k/1": (1300, 1400),
        "r/3": (1800, 1900),
        "o/0": (1900, 2000),
        "o/1": (2005, 2105),
    }
    assert client.never_issued == 0  # history is not counted
    assert {r.name: c.spawned_by for r, c in zip(rows, client.sent.conversation, strict=True)}["k/1"] == -1


def test_remaining_times_scale_with_think_times() -> None:
    rows, _ = settle(trace_of(session()), cut_at(0.4, think_scale=0.5))
    assert times(rows)["r/2"] == (400, 500)  # half of 100 left of r/1, and half of 700


def test_what_may_not_start_before_a_time_since_the_beginning_counts_history() -> None:
    play = session()
    play[0].turns[2].not_before_ns = 2100 * MS
    assert times(settle(trace_of(play), cut_at(0.4))[0])["r/2"] == (900, 1000)


def test_cuts_are_drawn_by_seed_play_and_lane() -> None:
    turns = [recorded(waits(turn(f"a{k}"), not_before_ms=1000 * k), 1000 * k, 10) for k in range(101)]
    trace = trace_of([talk("a", *turns)])
    changes = {"lanes": 2, "cut": "span", "wrap": True, "duration_s": 0.5, "client_seed": 9}
    _, client = settle(trace, changes)
    shares = [0.25 + 0.5 * uniform(9, "cut", "a", lane, 0) for lane in range(2)]
    cuts = [play.cut.at_ns for play in client.plays if play.cut is not None]
    assert cuts == [round(share * 100_000 * MS) for share in shares]
    assert cuts[0] != cuts[1]


def test_primers_and_warm_up_run_in_a_lane_one_after_the_other_and_the_profile_starts_behind_the_barrier() -> None:
    rows, client = settle(
        trace_of(session(), [talk("o", recorded(turn("o0"), 0, 10))]),
        cut_at(0.4, prime=True, warmup_requests=3, duration_s=1.5, grace_s=0.05),
    )
    by = client.rebase()  # type: ignore[attr-defined]
    assert by == 500 * MS
    assert client.start_ns == -500 * MS
    sent = client.sent
    told = [
        (row.name, phase, dispatched / MS, end / MS)
        for row, phase, dispatched, end in zip(rows, client.primed, sent.dispatched_ns, sent.end_ns, strict=False)
    ]
    assert told == [
        ("r/1", ("primer", 0), -500, -400),
        ("k/0", ("primer", 1), -400, -300),
        ("r/1", ("warmup", 0), -300, -200),
        ("k/0", ("warmup", 1), -200, -100),
        ("r/1", ("warmup", 2), -100, 0),
    ]
    # The profile goes on as without primers, until the deadline.
    profile = {
        r.name: (d / MS, e / MS) for r, d, e in zip(rows[5:], sent.dispatched_ns[5:], sent.end_ns[5:], strict=True)
    }
    assert profile == {"r/2": (800, 900), "k/1": (1300, 1400)}
    assert client.never_issued == 1  # r/3, due at 1800
    assert (client.deadline_ns, client.cancel_ns) == (1500 * MS, 1550 * MS)


def test_the_barrier_waits_for_the_slowest_lane() -> None:
    two = trace_of(session(), [talk("o", *(recorded(turn(f"o{k}", think_ms=10), 100 * k, 90) for k in range(5)))])
    changes = cut_at(0.4, prime=True) | {"lanes": 2, "lane_stagger_ms": 30}
    slow = lambda name: 400.0 if name == "k/0" else 100.0  # noqa: E731
    rows, client = settle(two, changes, slow)
    # Lane 0: r/1 from 0 to 100, k/0 to 500. Lane 1 primes o/1 (cut at 160 of 400, before o/2) from 30 to 130.
    assert times(rows[:3]) == {"r/1": (0, 100), "k/0": (100, 500), "o/1": (30, 130)}
    # o/2 is due at 190 + 10 of the recording, 40 after the cut.
    assert times(rows)["o/2"] == (540, 640)
    assert times(rows)["r/2"] == (1300, 1400)
    assert client.rebase() == 500 * MS  # type: ignore[attr-defined]


def test_lanes_without_history_have_nothing_to_prime_and_open_the_barrier_at_once() -> None:
    trace = trace_of([talk("a", recorded(turn("a0"), 0, 10))])
    rows, client = settle(trace, cut_at(0.5, prime=True, warmup_requests=4))
    assert times(rows) == {"a/0": (0, 100)}
    assert client.primed == []


def primed_trace() -> Trace:
    trace = trace_of(*[_renamed(session(), str(n)) for n in range(3)])
    for play in trace.plays:
        for conversation in play.conversations:
            for one in conversation.turns:
                (segment,) = one.new_input
                one.new_input = (replace(segment, tokens=60),)
    return trace


def _renamed(play: list[Conversation], suffix: str) -> list[Conversation]:
    for conversation in play:
        conversation.conversation_id += suffix
        conversation.parent = conversation.parent and conversation.parent + suffix
        for one in conversation.turns:
            one.spawn = tuple(name + suffix for name in one.spawn)
            one.new_input = tuple(replace(s, content=s.content + suffix) for s in one.new_input)
            one.edges = tuple(replace(e, conversation_id=e.conversation_id + suffix) for e in one.edges or ())
    return play


def rows_of(bundle: Bundle, name: str) -> list[dict[str, Any]]:
    table = bundle.table(name)
    assert table is not None
    return list(table.to_pylist())


PRIMED = {
    "timing": "fixed",
    "block_size": 4,
    "lanes": 2,
    "cut": "span",
    "prime": True,
    "warmup_requests": 2,
    "duration_s": 1.5,
    "grace_s": 0.1,
}


def test_a_primed_replay_has_its_phases_in_the_bundle_and_starts_warm(tmp_path: Path) -> None:
    run_id = replay(primed_trace(), PRIMED, store=tmp_path)
    bundle = open_bundle(tmp_path / run_id)
    assert bundle.verify(content=True) == []
    spans = {p.name: (p.start_ns, p.end_ns) for p in bundle.phases}
    assert list(spans)[:4] == ["primer", "warmup", "profile", "grace"]
    assert spans["primer"][0] < spans["primer"][1] == spans["warmup"][0] < spans["warmup"][1] == 0
    assert spans["profile"] == (0, 1500 * MS)
    rows = rows_of(bundle, "requests")
    before = [r for r in rows if r["phase"] != "profile"]
    assert sum(r["phase"] == "warmup" for r in before) == 4
    assert all(r["requested_output_tokens"] == r["output_tokens"] == 1 and r["status"] == "ok" for r in before)
    assert all(r["end_ns"] <= 0 and r["released_ns"] <= 0 for r in before)
    assert max(r["end_ns"] for r in before) == 0
    passes = rows_of(bundle, "passes")
    assert passes[0]["start_ns"] == spans["primer"][0]
    assert {p["phase"] for p in passes} >= {"primer", "warmup", "profile"}
    # What a primer computed is there when its conversation goes on: all but what the turn added.
    profile = {r["conversation_id"]: r for r in reversed(rows) if r["phase"] == "profile"}
    primers = {r["conversation_id"]: r for r in before if r["phase"] == "primer"}
    shared = primers.keys() & profile.keys()
    assert shared
    for name in shared:
        assert profile[name]["cached_tokens"] >= primers[name]["input_tokens"] // 4 * 4
    total = (bundle.ledger or {})["total"]
    assert total["in_graph"] == total["attempted"] + total["never_issued"]
    assert str(bundle.identity.value("client", "warmup_policy")).startswith("by count")
    assert bundle.identity.value("client", "trajectory_cuts") == [0.25, 0.75, "span"]


def test_a_primed_replay_is_varied_from_its_own_record(tmp_path: Path) -> None:
    run_id = replay(primed_trace(), PRIMED, store=tmp_path)
    again = replay(primed_trace(), knobs_from_run(open_bundle(tmp_path / run_id)), store=tmp_path)
    assert digests(tmp_path / again) == digests(tmp_path / run_id)


@pytest.mark.parametrize("core", ["plain", "skipping"])
def test_the_clock_of_a_primed_replay_moves_as_a_whole(core: str) -> None:
    def times_of(prime: bool) -> Any:
        values = {**PRIMED, "core": core, "prime": prime, "warmup_requests": 2 if prime else 0, "grace_s": 100}
        return simulate(primed_trace(), values, build_timing(knobs.resolve(values), None))

    result = times_of(True)
    record = result.record
    for columns in (record.passes, record.requests, record.admissions, record.events):
        assert {n for n in columns if n.endswith("_ns")} <= {
            *("start_ns", "end_ns", "received_ns", "first_admit_ns", "time_ns", "released_ns"),
            *DURATIONS,
        }
    assert record.passes["start_ns"][0] == result.client.start_ns
    assert (record.requests["received_ns"] >= result.client.start_ns).all()
    assert (record.admissions["time_ns"] == record.passes["start_ns"][record.admissions["pass_index"]]).all()
    # Dispatches of the profile: relative to its start those of a replay without primers, up to the first response.
    first = next(d for d in result.client.sent.dispatched_ns if d >= 0)
    assert first == min(times_of(False).client.sent.dispatched_ns)


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 100_000), share=st.sampled_from([0.1, 0.3, 0.5, 0.8]), prime=st.booleans())
def test_what_is_cut_goes_on_as_it_was_recorded(seed: int, share: float, prime: bool) -> None:
    """A play is recorded, each request with a time of its own; cut, it takes up every turn when the recording did."""
    trace = random_graph(seed, 1)
    service = random.Random(seed)
    durations: dict[str, float] = {}
    took = lambda name: durations.setdefault(name.split("~")[0], float(service.randint(1, 120)))  # noqa: E731
    whole, client = settle(trace, {"lanes": 1}, took)
    assume(not client.never_issued)  # no turns that wait for each other
    by_name = {row.name: row for row in whole}
    for conversation in trace.plays[0].conversations:
        for number, one in enumerate(conversation.turns):
            row = by_name[f"{conversation.conversation_id}/{number}"]
            recorded(one, row.dispatched, row.end - row.dispatched)
    rows, client = settle(trace, cut_at(share, prime=prime), took)
    (play,) = client.plays
    assert play.cut is not None
    at = play.cut.at_ns / MS
    begun = max([row.end for row in rows[: len(client.primed)]], default=0.0)
    profile = {row.name: round(row.dispatched - begun + at, 6) for row in rows[len(client.primed) :]}
    assert profile == {row.name: round(row.dispatched, 6) for row in whole if row.dispatched >= at}
    assert play.turns == len(profile)


@pytest.mark.skipif(not (PUBLIC / "weka").exists(), reason="the public captures are not here")
def test_recorded_sessions_are_cut_primed_and_played(tmp_path: Path) -> None:
    changes = {
        "lanes": 4,
        "wrap": True,
        "duration_s": 1800,
        "grace_s": 30,
        "block_size": 64,
        "cut": "span",
        "prime": True,
    }
    caps = {"idle_cap": "system", "tree_idle_cap_s": 300, "global_idle_cap_s": 10}
    rows, client = settle(load_trace(PUBLIC / "weka"), {**changes, **caps, "warmup_requests": 10}, 3000)
    phases = [phase for phase, _ in client.primed]
    assert phases.count("primer") == sum(len(play.cut.primers) for play in client.plays if play.cut is not None)
    assert phases.count("warmup") == 10 * sum(bool(play.cut and play.cut.primers) for play in client.plays)
    profile = len(rows) - len(phases)
    assert profile + client.never_issued == sum(play.turns for play in client.plays if play.begun)
    assert client.shifts
