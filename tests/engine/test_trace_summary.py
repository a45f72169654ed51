"""`gapscope trace inspect`: figures worked out by hand."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from engine.traces import load_trace
from engine.traces.tree import Conversation, Edge, Play, Trace, Turn
from engine.workload.summary import describe
from tests.engine.client_harness import talk, trace_of, turn
from tests.engine.public_files import PUBLIC

S = 1_000_000_000


def lines(trace: Trace) -> dict[str, str]:
    """Each line of the description by its name."""
    return {line[:17].strip(): line[18:] for line in describe(trace).splitlines()}


def named(
    *ids: int, after: tuple[Edge, ...] = (), think_s: float = 0, start_s: float = 0, api_s: float | None = 1
) -> Turn:
    """A turn whose prompt is whole blocks of 64 tokens."""
    return Turn(
        10,
        round(think_s * S),
        prompt_tokens=64 * len(ids),
        hash_ids=array("q", ids),
        edges=after,
        start_ns=round(start_s * S),
        api_ns=None if api_s is None else round(api_s * S),
    )


def edge(name: str, number: int, relation: str = "sequence", trigger: str = "completion") -> Edge:
    return Edge(name, number, trigger, 0, relation)  # type: ignore[arg-type]


def test_what_could_be_reused_in_a_play_and_in_the_trace() -> None:
    """Prompts of 2, 3 and 4 blocks that grow, and in a second play the same 2 blocks and then another.

    Full blocks seen before in the play: 0 of 2, 2 of 3, 3 of 4; 0 of 3. At most all but the last token may be reused,
    so nothing of a last block: in the plays 2 and 3 blocks, in the trace 2 more of the second.
    """
    first = Conversation(
        "a", [named(1, 2), named(1, 2, 3, after=(edge("a", 0),)), named(1, 2, 3, 4, after=(edge("a", 1),))]
    )
    trace = Trace("t", "test", "0" * 64, [Play("a", [first]), Play("b", [Conversation("b", [named(1, 2, 9)])])], 64)
    found = lines(trace)
    assert found["prefix hit"] == f"{100 * 5 / 12:.1f} % of the full blocks of prompts were seen before in their play"
    assert found["within plays"] == f"{100 * 5 / 12:.1f} % of the prompt tokens"
    assert found["reusable at most"] == f"{100 * 7 / 12:.1f} % of the prompt tokens, played one by one"


def test_a_prompt_finds_what_was_sent_before_it_in_other_conversations() -> None:
    """The child starts at 1 s, before its parent's second turn at 5 s, which finds the block that the child brought."""
    parent = Conversation("p", [named(1, start_s=0), named(1, 7, 8, after=(edge("p", 0),), start_s=5)])
    parent.turns[0].spawn = ("k",)
    child = Conversation("k", [named(1, 7, after=(edge("p", 0, "spawn", "dispatch"),), start_s=1)], "p", 0, depth=1)
    trace = Trace("t", "test", "0" * 64, [Play("p", [parent, child])], 64)
    assert lines(trace)["prefix hit"].startswith(f"{100 * (0 + 1 + 2) / 6:.1f} %")


def test_shapes_of_trees() -> None:
    """One play of a single turn; one whose root spawns k, which it joins, and then w, which nothing waits for; k in
    turn forks d from its first turn and joins it."""
    root = [turn("r0", spawn=("k",)), turn("r1", think_ms=2000, spawn=("w",))]
    tree = [
        talk("r", *root),
        talk("k", turn("k0", spawn=("d",)), turn("k1", think_ms=500), parent="r", after=0, depth=1),
        talk("d", turn("d0"), parent="k", after=0, fork=True, depth=2),
        talk("w", turn("w0"), parent="r", after=1, depth=1),
    ]
    found = lines(trace_of(tree, [talk("s", turn("s0"))]))
    assert found["plays"] == "2; arrivals not recorded"
    assert found["turns"].startswith("7; per play mean 3.5,")
    assert found["conversations"] == "5, 3 of them children"
    assert found["children per play"].startswith("mean 1.5,")
    assert found["children per play"].endswith("largest 3")
    assert found["children"] == "1 forked, 1 that no turn waits for (background)"
    assert found["joins"] == "2 turns wait for children"
    assert found["depth"] == "2 at 0, 2 at 1, 1 at 2"
    assert found["think time, s"].startswith("mean 1.250, p10 0.650, p50 1.250,")  # of 2 s and 0.5 s
    assert found["think time, s"].endswith("largest 2.000")
    assert "edges" not in found
    assert "recorded, s" not in found


def test_edges_are_counted_by_relation_and_joined_children_are_not_in_the_background() -> None:
    root = Conversation(
        "r",
        [
            named(1),
            named(2, after=(edge("r", 0), edge("deep", 0, "join"))),
            named(3, after=(edge("r", 1), edge("w", 0, "barrier"))),
        ],
    )
    root.turns[0].spawn = ("k", "w")
    child = Conversation("k", [named(4, after=(edge("r", 0, "spawn"),))], "r", 0, depth=1)
    child.turns[0].spawn = ("deep",)
    deep = Conversation("deep", [named(5, after=(edge("k", 0, "spawn"),))], "k", 0, depth=2)
    other = Conversation("w", [named(6, after=(edge("r", 0, "spawn"),))], "r", 0, depth=1)
    found = lines(Trace("t", "test", "0" * 64, [Play("r", [root, child, deep, other])], 64))
    assert found["edges"] == "1 barrier, 1 join, 2 sequence, 3 spawn"
    # The join on what k launched last is one on k; the barrier is none.
    assert found["children"] == "0 forked, 1 that no turn waits for (background)"
    assert found["joins"] == "1 turns wait for children"


def test_what_the_recording_had_in_flight() -> None:
    """0-4 s, 1-3 s and 3-5 s: two at once from 1 to 4, so 8 s of service in 5 s; a turn at 9 s without a duration."""
    turns = [
        named(1, api_s=4),
        named(2, start_s=1, api_s=2),
        named(3, start_s=3, api_s=2),
        named(4, start_s=9, api_s=None),
    ]
    found = lines(Trace("t", "test", "0" * 64, [Play("r", [Conversation("r", turns)])], 64))
    assert found["in flight"].startswith("recorded: mean 1.60 while any is; most in a play mean 2.0,")
    assert found["recorded, s"].startswith("plays took mean 9.0,")
    assert found["no duration"] == "1 of the turns were recorded without one"


def test_a_trace_without_later_turns_has_no_think_times(tmp_path: Path) -> None:
    trace = trace_of([talk("s", turn("s0", tokens=64))])
    trace.plays[0].arrival_ns = 3 * S
    found = lines(trace)
    assert found["think time, s"] == "none: no turn follows another"
    assert found["plays"] == "1; arrivals over 0.0 s"
    assert found["prefix hit"].startswith("0.0 %")


@pytest.mark.skipif(not (PUBLIC / "weka").is_dir(), reason="the public sessions are not here")
def test_the_public_sessions() -> None:
    """Each prompt finds the named blocks of the one before; after its one edit, all but the last."""
    found = lines(load_trace(PUBLIC / "weka"))
    reused = 3917 + 3930 + 3937 + 3945 + 3953 + 3966 + 3997 + 4011 + 4036 + 4049 + 2578 + 2583 + 2817
    assert found["within plays"] == f"{100 * 64 * reused / (2_804_125 + 691_279):.1f} % of the prompt tokens"
    assert found["edges"] == "13 sequence"
    assert found["recorded, s"].endswith("largest 1,240.5")  # 1191 s and 49.47 s
