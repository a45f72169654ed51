"""Timelines of trees that say what waits for what, worked out by hand. All times in ms; a request takes 100 ms."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import GapscopeError
from engine.traces.check import check_trace
from engine.traces.tree import Edge, Trace, Turn
from tests.engine.client_harness import MS, Request, settle, talk, trace_of, turn
from tests.engine.test_client import times
from tests.engine.test_client_properties import random_trace


def edge(name: str, number: int, trigger: str = "completion", delay_ms: float = 0, relation: str = "sequence") -> Edge:
    return Edge(name, number, trigger, round(delay_ms * MS), relation)  # type: ignore[arg-type]


def waits(made: Turn, *edges: Edge, not_before_ms: float | None = None) -> Turn:
    made.edges = edges
    made.not_before_ns = None if not_before_ms is None else round(not_before_ms * MS)
    return made


def test_a_child_starts_on_dispatch_of_its_parent_and_the_next_turn_joins_on_it() -> None:
    play = [
        talk(
            "r",
            waits(turn("r0", spawn=("k",))),
            waits(turn("r1"), edge("r", 0, delay_ms=20), edge("k", 0, delay_ms=5, relation="join")),
        ),
        talk("k", waits(turn("k0"), edge("r", 0, "dispatch", 30, "spawn")), parent="r", after=0, depth=1),
    ]
    rows, client = settle(trace_of(play, [talk("next", turn("n"))]), {"lanes": 1})
    # r1: 20 after r0's end is 120, 5 after k's end is 135.
    assert times(rows) == {"r/0": (0, 100), "k/0": (30, 130), "r/1": (135, 235), "next/0": (235, 335)}
    assert client.sent.conversation[1].spawned_by == 0


def test_a_background_child_holds_the_lane_but_not_its_parent() -> None:
    play = [
        talk("r", waits(turn("r0", spawn=("bg",))), waits(turn("r1"), edge("r", 0, delay_ms=10))),
        talk("bg", waits(turn("b0"), edge("r", 0, delay_ms=400, relation="spawn")), parent="r", after=0, depth=1),
    ]
    rows, _ = settle(trace_of(play, [talk("next", turn("n"))]), {"lanes": 1})
    assert times(rows) == {"r/0": (0, 100), "r/1": (110, 210), "bg/0": (500, 600), "next/0": (600, 700)}


def test_nothing_starts_before_its_time_since_the_play_began() -> None:
    play = [
        talk("a", waits(turn("a0"), not_before_ms=40), waits(turn("a1"), edge("a", 0, delay_ms=1), not_before_ms=300)),
    ]
    rows, _ = settle(trace_of(play), {"lanes": 1, "warmup_s": 0.01})
    assert times(rows) == {"a/0": (30, 130), "a/1": (290, 390)}  # the play began at -10


def test_a_turn_is_not_sent_before_the_request_that_it_continues_has_ended() -> None:
    # Both turns are due at once; the second continues the first.
    play = [talk("a", waits(turn("a0")), waits(turn("a1"), not_before_ms=30))]
    rows, _ = settle(trace_of(play), {"lanes": 1, "dispatch_lag_ms": 2})
    assert [(r.name, r.scheduled, r.dispatched, r.end) for r in rows] == [("a/0", 0, 2, 102), ("a/1", 102, 104, 204)]


def test_a_response_that_is_still_on_its_way_is_waited_for_too() -> None:
    play = [talk("a", waits(turn("a0")), waits(turn("a1"), not_before_ms=105))]
    rows, _ = settle(trace_of(play), {"lanes": 1, "response_latency_ms": 50})
    assert times(rows) == {"a/0": (0, 150), "a/1": (150, 300)}


def test_a_fork_waits_for_the_end_of_the_request_whose_context_it_continues_and_a_fresh_child_does_not() -> None:
    def play(fork: bool) -> Any:
        spawned = edge("r", 0, "dispatch", 10, "spawn")
        return [
            talk("r", waits(turn("r0", spawn=("k",)))),
            talk("k", waits(turn("k0"), spawned), parent="r", after=0, fork=fork, depth=1),
        ]

    assert times(settle(trace_of(play(True)), {"lanes": 1})[0])["k/0"] == (100, 200)
    assert times(settle(trace_of(play(False)), {"lanes": 1})[0])["k/0"] == (10, 110)


def test_dispatch_counts_from_the_client_not_from_the_engine() -> None:
    play = [
        talk("r", waits(turn("r0", spawn=("k",)))),
        talk("k", waits(turn("k0"), edge("r", 0, "dispatch", 10)), parent="r", after=0, depth=1),
    ]
    rows, _ = settle(trace_of(play), {"lanes": 1, "dispatch_lag_ms": 1, "request_latency_ms": 5})
    # r0 is sent at 1 and received at 6; k0 is scheduled 10 after it was sent.
    assert [(r.name, r.scheduled, r.dispatched, r.end) for r in rows] == [("r/0", 0, 1, 106), ("k/0", 11, 12, 117)]


def test_what_waits_for_a_canceled_turn_is_never_sent() -> None:
    play = [
        talk("r", waits(turn("r0", spawn=("k",))), waits(turn("r1"), edge("r", 0))),
        talk("k", waits(turn("k0"), edge("r", 0)), waits(turn("k1"), edge("k", 0)), parent="r", after=0, depth=1),
    ]
    rows, client = settle(trace_of(play), {"lanes": 1, "duration_s": 0.05, "grace_s": 0.02})
    assert [(r.name, r.end, r.ok) for r in rows] == [("r/0", 70, False)]
    assert client.never_issued == 3


def test_delays_scale_with_think_times() -> None:
    play = [talk("a", waits(turn("a0"), not_before_ms=40), waits(turn("a1"), edge("a", 0, delay_ms=60)))]
    rows, _ = settle(trace_of(play), {"lanes": 1, "think_scale": 0.5})
    assert times(rows) == {"a/0": (20, 120), "a/1": (150, 250)}


def explicit(trace: Trace) -> None:
    """Write the default rule of a trace out as edges."""
    for play in trace.plays:
        by_id = {c.conversation_id: c for c in play.conversations}

        def ends(name: str, at: dict[str, Any] = by_id) -> list[Edge]:
            turns = at[name].turns
            if not turns[-1].spawn:
                return [Edge(name, len(turns) - 1, "completion", 0, "join")]
            return [end for child in turns[-1].spawn for end in ends(child, at)]

        for conversation in play.conversations:
            for number, one in enumerate(conversation.turns):
                name, think = conversation.conversation_id, one.think_ns
                if number:
                    spawned = conversation.turns[number - 1].spawn
                    found = [end for child in spawned for end in ends(child)]
                    found = found or [Edge(name, number - 1, "completion", 0, "sequence")]
                elif conversation.parent is not None:
                    found = [Edge(conversation.parent, conversation.after_turn or 0, "completion", 0, "spawn")]
                else:
                    one.edges, one.not_before_ns = (), think
                    continue
                one.edges = tuple(Edge(e.conversation_id, e.turn, e.trigger, think, e.relation) for e in found)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), lanes=st.integers(1, 3), deadline=st.sampled_from([0, 0.4]))
def test_the_default_rule_is_what_its_edges_say(seed: int, lanes: int, deadline: float) -> None:
    changes = {"lanes": lanes, "lane_assignment": "cursor", "duration_s": deadline, "response_latency_ms": 3}
    service = random.Random(seed)
    durations: dict[str, float] = {}
    took = lambda name: durations.setdefault(name, float(service.randint(1, 120)))  # noqa: E731
    plain = settle(random_trace(seed, 4), changes, took)[0]
    written = random_trace(seed, 4)
    explicit(written)
    rows = settle(written, changes, took)[0]
    assert sorted(plain, key=lambda r: r.name) == sorted(rows, key=lambda r: r.name)


def random_graph(seed: int, plays: int) -> Trace:
    """Trees whose turns wait for random earlier turns of their play, as a recording of them would have begun."""
    rng = random.Random(seed)
    out = []
    for number in range(plays):
        names = [f"p{number}"]
        conversations = [talk(names[0], *(turn(f"{names[0]}.{k}") for k in range(rng.randint(1, 4))))]
        for child in range(rng.randint(0, 4)):
            above = rng.choice(conversations)
            after = rng.randrange(len(above.turns))
            name = f"p{number}.{child}"
            made = talk(
                name,
                *(turn(f"{name}.{k}") for k in range(rng.randint(1, 3))),
                parent=above.conversation_id,
                after=after,
                fork=rng.random() < 0.5,
                depth=above.depth + 1,
            )
            above.turns[after].spawn += (name,)
            conversations.append(made)
        earlier: list[tuple[str, int]] = []
        heads = {c.conversation_id: 0 for c in conversations}
        while left := [c for c in conversations if heads[c.conversation_id] < len(c.turns)]:
            ready = [
                c for c in left if c.parent is None or heads[c.conversation_id] or (c.parent, c.after_turn) in earlier
            ]
            one = rng.choice(ready)
            at = heads[one.conversation_id]
            sources = rng.sample(earlier, min(len(earlier), rng.randint(0, 3)))
            edges = tuple(
                edge(name, k, rng.choice(["dispatch", "completion"]), rng.randint(0, 150)) for name, k in sources
            )
            if rng.random() < 0.85:
                waits(one.turns[at], *edges, not_before_ms=rng.choice([None, None, rng.randint(0, 400)]))
            else:
                one.turns[at].think_ns = rng.randint(0, 60) * MS
            earlier.append((one.conversation_id, at))
            heads[one.conversation_id] += 1
        out.append(conversations)
    return trace_of(*out)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 100_000),
    changes=st.fixed_dictionaries(
        {
            "lanes": st.integers(1, 3),
            "lane_assignment": st.sampled_from(["strided", "cursor"]),
            "duration_s": st.sampled_from([0, 0.5, 1.5]),
            "grace_s": st.sampled_from([0, 0.1]),
            "dispatch_lag_ms": st.sampled_from([0, 2]),
            "request_latency_ms": st.sampled_from([0, 3]),
            "response_latency_ms": st.sampled_from([0, 7]),
            "host_model": st.sampled_from(["off", "given"]),
        }
    ),
)
def test_laws_of_random_graphs(seed: int, changes: dict[str, Any]) -> None:
    trace = random_graph(seed, 4)
    if changes["host_model"] == "given":
        changes = {**changes, "host_request_ms": 40.0}
    service = random.Random(seed)
    durations: dict[str, float] = {}
    rows, client = settle(trace, changes, lambda name: durations.setdefault(name, float(service.randint(1, 120))))
    try:
        check_trace(trace, "random")
        acyclic = True
    except GapscopeError:  # an edge and a default rule can make a circle; then its turns are never sent
        acyclic = False
    by_name = {r.name: r for r in rows}
    assert len(by_name) == len(rows)  # nothing is sent twice

    # Every turn of a play that sent something is sent once or counted as never issued.
    started = {id(c.live): c.live for c in client.sent.conversation}
    graph = sum(len(c.turns) for live in started.values() for c in live.play.conversations)
    assert graph == len(rows) + client.never_issued
    if acyclic and not changes["duration_s"]:
        assert client.never_issued == 0

    spans: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        root = row.name.split("/")[0].split(".")[0]
        spans[row.lane][root] += [row.dispatched, row.end]
    for lane in spans.values():  # a lane holds one play at a time
        ordered = sorted((min(t), max(t)) for t in lane.values())
        assert all(before[1] <= after[0] for before, after in pairwise(ordered))
    for play in trace.plays:
        for conversation in play.conversations:
            for number, one in enumerate(conversation.turns):
                sent = by_name.get(f"{conversation.conversation_id}/{number}")
                if sent is not None:
                    _check_turn(sent, conversation.conversation_id, number, one, conversation, by_name)


def _check_turn(
    row: Request, name: str, number: int, one: Turn, conversation: Any, by_name: dict[str, Request]
) -> None:
    for e in one.edges or ():
        source = by_name.get(f"{e.conversation_id}/{e.turn}")
        assert source is not None
        assert source.ok or e.trigger == "dispatch"
        fired = source.dispatched if e.trigger == "dispatch" else source.end
        assert row.scheduled >= round(fired + e.delay_ns / MS, 6)
    # What it continues is over, if it was sent before.
    before = f"{name}/{number - 1}" if number else f"{conversation.parent}/{conversation.after_turn}"
    if before in by_name and (number or conversation.mode == "fork"):
        other = by_name[before]
        assert row.dispatched >= other.end or row.dispatched <= other.dispatched


@pytest.mark.parametrize("wrap", [False, True])
def test_a_play_that_is_played_again_waits_for_its_own_turns(wrap: bool) -> None:
    play = [talk("a", waits(turn("a0")), waits(turn("a1"), edge("a", 0, delay_ms=10)))]
    changes = {"lanes": 1, "wrap": wrap, "duration_s": 0.4, "grace_s": 1}
    rows, _ = settle(trace_of(play), changes)
    first = {"a/0": (0, 100), "a/1": (110, 210)}
    assert times(rows) == (first | {"a#1/0": (210, 310), "a#1/1": (320, 420)} if wrap else first)
