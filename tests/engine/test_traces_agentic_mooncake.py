"""Agentic Mooncake, version 2 and the older style: small plays written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from engine.errors import GapscopeError
from engine.traces import load_trace
from engine.traces.tree import Conversation, Edge, Trace
from engine.workload.hash_ids import block_keys_of

MS = 1_000_000
HEADER = {
    "schema": "dynamo.agentic_mooncake",
    "version": 2,
    "block_size": 64,
    "hash_id_scope": "local",
    "source": {"format": "weka", "digest": "ab"},
}


def dep(request: str, delay: float = 0, relation: str = "sequence", trigger: str = "completion") -> dict[str, Any]:
    return {"request_id": request, "trigger": trigger, "delay_ms": delay, "relation": relation}


def row(request: str, session: str, *dependencies: dict[str, Any], at: float = 0, **more: Any) -> dict[str, Any]:
    return {
        "request_id": request,
        "play_id": "p",
        "session_id": session,
        "model": "m",
        "input_length": 100,
        "output_length": 8,
        "hash_ids": [1, 2],
        "not_before_ms": at,
        "dependencies": list(dependencies),
        **more,
    }


def write(path: Path, *rows: Any) -> Path:
    path.write_bytes(b"".join(orjson.dumps(r) + b"\n" for r in rows))
    return path


def load(folder: Path, *rows: Any) -> Trace:
    return load_trace(write(folder / "w.jsonl", *rows))


def conversations(trace: Trace) -> dict[str, Conversation]:
    return {c.conversation_id: c for play in trace.plays for c in play.conversations}


def edge(name: str, turn: int, delay_ms: float, relation: str, trigger: str = "completion") -> Edge:
    return Edge(name, turn, trigger, round(delay_ms * MS), relation)  # type: ignore[arg-type]


def test_a_play_of_version_2(tmp_path: Path) -> None:
    """Main m0, m1, m2; m0 launches a helper h0, h1 while it runs; m1 waits for its end; a third session waits only by a
    barrier. Rows are in no order of time."""
    trace = load(
        tmp_path,
        HEADER,
        row("a:h1", "help", dep("a:h0", 10), at=60),
        row("b:m1", "main", dep("c:m0", 30), dep("a:h1", 2.5, "join"), at=100, recorded_api_time_ms=40),
        row("c:m0", "main", output_length=0),
        row("d:h0", "x", dep("b:m1", 0, "replay_barrier"), at=200),
        row("a:h0", "help", dep("c:m0", 5, "spawn", "dispatch"), at=5),
        row("e:m2", "main", dep("b:m1", 7), at=150),
    )
    assert (trace.format, trace.hash_block_tokens) == ("agentic-mooncake", 64)
    assert trace.notes == {
        "requests without output": "1, played with one token, which a server must sample",
        "made from": "weka",
    }
    (play,) = trace.plays
    assert (play.source_trace_id, play.conversations[0].conversation_id, play.arrival_ns) == ("p", "main", None)
    found = conversations(trace)
    assert [turn.edges for turn in found["main"].turns] == [
        (),
        (edge("main", 0, 30, "sequence"), edge("help", 1, 2.5, "join")),
        (edge("main", 1, 7, "sequence"),),
    ]
    assert [turn.edges for turn in found["help"].turns] == [
        (edge("main", 0, 5, "spawn", "dispatch"),),
        (edge("help", 0, 10, "sequence"),),
    ]
    assert [turn.edges for turn in found["x"].turns] == [(edge("main", 1, 0, "barrier"),)]
    assert [turn.spawn for turn in found["main"].turns] == [("help",), ("x",), ()]
    assert [(found[n].parent, found[n].after_turn, found[n].depth) for n in ("help", "x")] == [
        ("main", 0, 1),
        ("main", 1, 1),
    ]
    main = found["main"].turns
    assert [(t.not_before_ns, t.start_ns, t.api_ns) for t in main] == [
        (0, 0, None),
        (100 * MS, 100 * MS, 40 * MS),
        (150 * MS, 150 * MS, None),
    ]
    assert [(t.think_ns, t.output_tokens, t.prompt_tokens) for t in main] == [
        (0, 1, 100),
        (30 * MS, 8, 100),
        (7 * MS, 8, 100),
    ]


def test_a_session_that_waits_for_nothing_hangs_below_the_root(tmp_path: Path) -> None:
    found = conversations(load(tmp_path, HEADER, row("b", "y", at=30), row("a", "x")))
    assert (found["y"].parent, found["y"].after_turn) == ("x", 0)
    assert (found["y"].turns[0].edges, found["y"].turns[0].not_before_ns) == ((), 30 * MS)
    assert found["x"].turns[0].spawn == ("y",)


def test_plays_come_by_their_ordinals_and_share_no_blocks(tmp_path: Path) -> None:
    trace = load(
        tmp_path,
        HEADER,
        row("a", "x", play_id="late", source_play_ordinal=1),
        row("b", "x", play_id="first", source_play_ordinal=0),
    )
    assert [p.source_trace_id for p in trace.plays] == ["first", "late"]
    assert set(conversations(trace)) == {"first/x", "late/x"}  # one session id, two plays
    keys = block_keys_of(trace, 64)
    one, two = (keys.walk(p.conversations[0], None, 0).keys[0] for p in trace.plays)
    assert len(one) == len(two) == 1
    assert list(one) != list(two)


def older(request: str, session: str | None = "s", **more: Any) -> dict[str, Any]:
    fields = {"request_id": request, "input_length": 128, "output_length": 8, "hash_ids": [1, 2], **more}
    return fields if session is None else {"session_id": session, **fields}


def test_the_older_style(tmp_path: Path) -> None:
    """Two plays. In the first r1 waits for r0 and for a helper that r0 started, and r3 just follows r1."""
    trace = load(
        tmp_path,
        older("r0", timestamp=1000),
        older("q0", "t", timestamp=1500),
        older("r2", "helper", wait_for=["r0"], delay=4),
        older("r1", wait_for=["r0", "r2"], delay_ms=10, tool_wait_ms=2.5),
        older("r3", delay=3, hash_ids=[1, 2]),
        older("r4", None, wait_for=["r2"]),
        older("r5", "late", wait_for=[], timestamp=1800),
        older("r6", "late", wait_for=["r3"]),
    )
    assert [(p.source_trace_id, p.arrival_ns) for p in trace.plays] == [("s", 1000 * MS), ("t", 1500 * MS)]
    assert trace.hash_block_tokens == 64
    found = conversations(trace)
    assert [turn.edges for turn in found["s"].turns] == [
        (),
        (edge("s", 0, 12.5, "sequence"), edge("helper", 0, 12.5, "join")),
        (edge("s", 1, 3, "sequence"),),
    ]
    assert found["helper"].turns[0].edges == (edge("s", 0, 4, "spawn"),)
    assert found["r4"].turns[0].edges == (edge("helper", 0, 0, "spawn"),)
    assert (found["r4"].parent, found["r4"].depth) == ("helper", 2)
    late = found["late"].turns
    assert [(turn.edges, turn.not_before_ns) for turn in late] == [((), 800 * MS), ((edge("s", 2, 0, "join"),), None)]
    assert [turn.think_ns for turn in found["s"].turns] == [0, 12.5 * MS, 3 * MS]


def test_rows_that_wait_for_nothing_are_plain_mooncake(tmp_path: Path) -> None:
    trace = load(tmp_path, older("a", timestamp=0), older("b", delay=2))
    assert trace.format == "mooncake"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{**HEADER, "version": 1}], "line 1: version 1 of dynamo.agentic_mooncake, expected 2"),
        ([{**HEADER, "block_size": 0}], "line 1: block_size is 0"),
        ([{**HEADER, "hash_id_scope": "global"}], "line 1: hash_id_scope is 'global', expected 'local'"),
        ([HEADER], "an empty trace"),
        ([HEADER, row("a", "x"), row("a", "x")], "line 3: the request a is there twice, first in .*line 2"),
        ([HEADER, row("a", "x", dep("b"))], "line 2: waits for the request b, which is not there"),
        (
            [HEADER, row("a", "x"), row("b", "y", dep("a"), play_id="q")],
            "line 3: waits for the request a, .* another play",
        ),
        ([HEADER, row("a", "x"), row("b", "x", dep("b"))], "line 3: the request b waits for itself"),
        (
            [HEADER, row("a", "x"), row("b", "x", dep("c")), row("c", "x", dep("b"))],
            "line 3: the request b waits for itself",
        ),
        ([HEADER, row("a", "x", dep("a", -1))], r"line 2: dependencies\[0\]: delay_ms is -1"),
        ([HEADER, row("a", "x", dep("a", 0, "love"))], r"line 2: dependencies\[0\]: relation is \"love\""),
        ([HEADER, row("a", "x", input_length=0)], "line 2: input_length is 0"),
        ([HEADER, row("a", "x", input_length=64)], "line 2: 2 hash ids for 64 tokens in blocks of 64"),
        ([HEADER, row("a", "x", hash_ids=["1"])], "line 2: hash_ids is not a list of whole numbers"),
        ([HEADER, {"request_id": "a"}], "line 2: the field play_id is missing"),
        ([HEADER, {k: v for k, v in row("a", "x").items() if k != "output_length"}], "line 2: the field output_"),
        ([HEADER, row("a", "x"), {**HEADER, "block_size": 16}], "line 3: block_size is 16, unlike"),
        ([older("a", wait_for=["b"])], "line 1: waits for the request b, which is not there"),
        ([older("a", wait_for=[]), older("b", wait_for="a")], 'line 2: wait_for is "a"'),
        ([older("a", wait_for=[], timestamp="noon")], "line 1: timestamp is no number of milliseconds"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, rows: list[Any], said: str) -> None:
    with pytest.raises(GapscopeError, match=said):
        load(tmp_path, *rows)
