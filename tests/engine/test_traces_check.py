"""A trace must be a forest that a client can walk."""

from __future__ import annotations

import pytest

from engine.errors import GapscopeError
from engine.traces.check import check_trace
from engine.traces.edges import edges_of, in_order
from engine.traces.tree import Edge, Play, Trace, Turn
from tests.engine.client_harness import talk, trace_of, turn

GOOD = [talk("r", turn("r0", spawn=("k",))), talk("k", turn("k0"), parent="r", after=0)]
A_CYCLE = [
    talk("r", turn("r0")),
    talk("a", turn("a0", spawn=("b",)), parent="b", after=0),
    talk("b", turn("b0", spawn=("a",)), parent="a", after=0),
]


def test_a_tree_passes() -> None:
    check_trace(trace_of(GOOD), "w")


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        (trace_of(), "no plays"),
        (trace_of(A_CYCLE), "a cycle of parents: a -> b -> a"),
        (trace_of([talk("r", turn("r0", spawn=("r",)))]), "says that its parent is None"),
        (trace_of([talk("r", turn("r0", spawn=("x",)))]), "spawns x, which is not there"),
        (trace_of([*GOOD, talk("k", turn("k1"))]), "named twice"),
        (trace_of([talk("r", turn("r0", spawn=("k", "k"))), GOOD[1]]), "k is spawned twice"),
        (trace_of([talk("r", turn("r0")), talk("k", turn("k0"), parent="r", after=0)]), "k is not spawned"),
        (trace_of([talk("r", turn("r0"), turn("r1", spawn=("k",))), GOOD[1]]), "parent is r after turn 0"),
        (trace_of([GOOD[1]]), "expected a root conversation"),
        (trace_of([talk("r")]), "has no turns"),
        (trace_of([talk("r", turn("r0", output=0))]), "at least 1 output token"),
        (trace_of([talk("r", turn("r0", tokens=0))]), "turn 0 of r has an empty prompt"),
        (trace_of([talk("r", turn("r0"))], [talk("r", turn("r0"))]), "r is in two plays"),
    ],
)
def test_what_is_no_tree_is_refused_and_named(trace: Trace, said: str) -> None:
    with pytest.raises(GapscopeError, match=said):
        check_trace(trace, "w")


def test_a_think_time_of_centuries_is_refused() -> None:
    trace = trace_of([talk("r", turn("r0"))])
    trace.plays[0].conversations[0].turns[0].think_ns = 10**18 + 1
    with pytest.raises(GapscopeError, match="a think time from 0 to 31 years"):
        check_trace(trace, "w")


def after(name: str, number: int, delay_ns: int = 0, trigger: str = "completion", relation: str = "sequence") -> Edge:
    return Edge(name, number, trigger, delay_ns, relation)  # type: ignore[arg-type]


def waiting(*edges: Edge, name: str = "x", spawn: tuple[str, ...] = (), start_ns: int | None = None) -> Turn:
    out = turn(name, spawn=spawn)
    out.edges, out.start_ns = edges, start_ns
    return out


def test_a_tree_whose_turns_name_what_they_wait_for_passes() -> None:
    """The root's second turn joins a child that starts when the first turn is dispatched."""
    root = talk("r", waiting(spawn=("k",)), waiting(after("r", 0), after("k", 0, relation="join")))
    child = talk("k", waiting(after("r", 0, 5, "dispatch", "spawn")), parent="r", after=0)
    check_trace(trace_of([root, child]), "w")


@pytest.mark.parametrize(
    ("turns", "said"),
    [
        ([waiting(), waiting(after("r", 7))], "turn 1 of r waits for turn 7 of r, which is not there"),
        ([waiting(), waiting(after("q", 0))], "turn 1 of r waits for turn 0 of q, which is not there"),
        ([waiting(), waiting(after("r", -1))], "turn 1 of r waits for turn -1 of r, which is not there"),
        ([waiting(), waiting(after("r", 0, -1))], "turn 1 of r waits -1 ns after turn 0 of r, expected a delay from 0"),
        ([waiting(after("r", 0))], "turns wait for each other: turn 0 of r -> turn 0 of r"),
        # The second waits for the third, which by the implicit rule follows the second.
        ([turn("a"), waiting(after("r", 2)), turn("c")], "each other: turn 1 of r -> turn 2 of r -> turn 1 of r"),
        ([waiting(after("r", 6)), *(waiting(after("r", n)) for n in range(6))], r"turn 3 of r -> \(2 more\) -> turn 0"),
        ([waiting(start_ns=-1)], "turn 0 of r: start_ns is -1, expected a time from 0 to 31 years"),
    ],
)
def test_turns_that_could_never_be_sent_are_refused(turns: list[Turn], said: str) -> None:
    with pytest.raises(GapscopeError, match=said):
        check_trace(trace_of([talk("r", *turns)]), "w")


def test_the_implicit_rule_as_edges() -> None:
    """Turn 0 of the root spawns k, whose last turn spawns m: the root's turn 1 waits for its turn 0 and for m."""
    play = Play(
        "r",
        [
            talk("r", turn("r0", spawn=("k",)), turn("r1", think_ms=2)),
            talk("k", turn("k0", think_ms=3), turn("k1", spawn=("m",)), parent="r", after=0),
            talk("m", turn("m0"), parent="k", after=1),
        ],
    )
    edges = edges_of(play)
    assert edges == {
        ("r", 0): (),
        ("r", 1): (after("r", 0, 2_000_000), after("m", 0, 2_000_000, relation="join")),
        ("k", 0): (after("r", 0, 3_000_000, relation="spawn"),),
        ("k", 1): (after("k", 0),),
        ("m", 0): (after("k", 1, relation="spawn"),),
    }
    assert in_order(play, edges) == [("r", 0), ("k", 0), ("k", 1), ("m", 0), ("r", 1)]


def test_turns_that_may_come_next_come_in_order_of_their_recorded_start() -> None:
    first = talk("r", waiting(spawn=("a", "b"), start_ns=0), waiting(after("r", 0), start_ns=30))
    children = [
        talk("a", waiting(after("r", 0), start_ns=40), parent="r", after=0),
        talk("b", waiting(after("r", 0), start_ns=20), parent="r", after=0),
    ]
    play = Play("r", [first, *children])
    assert in_order(play, edges_of(play)) == [("r", 0), ("b", 0), ("r", 1), ("a", 0)]
