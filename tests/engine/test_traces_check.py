"""A trace must be a forest that a client can walk."""

from __future__ import annotations

import pytest

from engine.errors import GapscopeError
from engine.traces.check import check_trace
from engine.traces.tree import Trace
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
