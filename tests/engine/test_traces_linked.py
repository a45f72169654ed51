"""Mooncake rows that say what they wait for: trees, joins and shortened prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from engine.errors import GapscopeError
from engine.traces import load_trace
from engine.traces.tree import Edge
from tests.engine.client_harness import settle

MS = 1_000_000


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def row(at: float, tokens: int, ids: list[int], **more: Any) -> dict[str, Any]:
    return {"timestamp": at, "input_length": tokens, "output_length": 5, "hash_ids": ids, **more}


def test_a_session_with_two_subagents_that_the_next_turn_joins(tmp_path: Path) -> None:
    """Session 4: a turn, two subagents of it (one with two turns), and a turn that waits for both."""
    file = write(
        tmp_path / "w.jsonl",
        row(1000, 32, [1, 2], sess=4),
        row(1500, 16, [9], sess=4, dep=0, think_ms=20),
        row(1600, 48, [1, 2, 3], sess=4, dep=0, joins=[3, 4], think_ms=7),  # row 5 when sorted: see below
        row(1520, 16, [8], sess=4, dep=0, think_ms=30),
        row(1550, 32, [9, 10], sess=4, dep=1, think_ms=2.5),
    )
    # In the order of timestamps: 0 root, 1 subagent (9), 2 subagent (8), 3 its sibling's second turn, 4 the join.
    rows = [orjson.loads(line) for line in file.read_bytes().splitlines()]
    rows[2]["joins"] = [2, 3]
    rows[4]["dep"] = 1
    trace = load_trace(write(file, *rows))
    (play,) = trace.plays
    assert (play.source_trace_id, play.arrival_ns, trace.hash_block_tokens) == ("sess4", 1000 * MS, 16)
    root, first, second = play.conversations
    assert [len(c.turns) for c in play.conversations] == [2, 2, 1]
    assert root.turns[0].spawn == (first.conversation_id, second.conversation_id)
    assert {(c.parent, c.after_turn, c.depth) for c in (first, second)} == {("sess4", 0, 1)}
    assert root.turns[0].edges == ()
    assert root.turns[1].edges == (
        Edge("sess4", 0, "completion", 7 * MS, "sequence"),
        Edge(second.conversation_id, 0, "completion", 7 * MS, "join"),
        Edge(first.conversation_id, 1, "completion", 7 * MS, "join"),
    )
    assert first.turns[0].edges == (Edge("sess4", 0, "completion", 20 * MS, "spawn"),)
    assert first.turns[1].edges == (Edge(first.conversation_id, 0, "completion", round(2.5 * MS), "sequence"),)
    assert [t.start_ns for t in root.turns] == [0, 600 * MS]
    # Each response takes 100 ms: the subagents end at 220 + 2.5 + 100 and at 230, the join is due 7 ms after the later.
    sent = {request.name: request.scheduled for request in settle(trace, {"lanes": 1})[0]}
    assert sent == {"sess4/0": 0, "sess4/1/0": 120, "sess4/2/0": 130, "sess4/1/1": 222.5, "sess4/1": 329.5}


def test_a_chain_needs_no_edges_and_sessions_are_played_by_number(tmp_path: Path) -> None:
    rows = [
        row(0, 16, [1], sess=9),
        row(1, 16, [5], sess=2),
        row(2, 32, [1, 2], sess=9, dep=0, delay_ms=3),
        row(3, 16, [7]),
    ]
    file = tmp_path / "w.json"
    file.write_bytes(orjson.dumps([{key.upper(): value for key, value in r.items()} for r in rows]))
    trace = load_trace(file)
    assert [p.source_trace_id for p in trace.plays] == ["sess2", "sess9", "row3"]
    turns = trace.plays[1].conversations[0].turns
    assert [(t.edges, t.think_ns) for t in turns] == [(None, 0), (None, 3 * MS)]


def test_hp_repeats_the_beginning_of_a_row_of_the_file(tmp_path: Path) -> None:
    """hp counts rows as the file lists them, dep as they are sorted."""
    file = write(
        tmp_path / "w.jsonl",
        row(50, 48, [1, 2, 3], sess=0),
        row(0, 16, [7], sess=1),
        row(60, 64, [4, 5], sess=0, dep=1, hp=[0, 2]),
        row(70, 80, [6], sess=0, dep=2, hp=[2, 4]),
    )
    plays = load_trace(file).plays
    prompts = [list(t.hash_ids or ()) for t in plays[0].conversations[0].turns]
    assert prompts == [[1, 2, 3], [1, 2, 4, 5], [1, 2, 4, 5, 6]]
    assert plays[1].arrival_ns == 0


def test_rows_that_wait_for_nothing_start_with_their_session(tmp_path: Path) -> None:
    file = write(tmp_path / "w.jsonl", row(0, 16, [1], sess=0), row(5, 16, [2], sess=0, think_ms=4, dep=-1))
    root, other = load_trace(file).plays[0].conversations
    assert (other.parent, other.after_turn) == (root.conversation_id, 0)
    assert (other.turns[0].edges, other.turns[0].not_before_ns) == ((), 4 * MS)


def test_without_times_nothing_is_said_of_arrivals(tmp_path: Path) -> None:
    file = write(tmp_path / "w.jsonl", {"input_length": 8, "output_length": 0, "hash_ids": [1], "sess": 3})
    trace = load_trace(file)
    assert trace.plays[0].arrival_ns is None
    assert trace.plays[0].conversations[0].turns[0].start_ns is None
    assert trace.notes["requests without output"].startswith("1,")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (row(9, 16, [1], sess=0, dep=1), r"line 2: waits for row 1, expected an earlier one"),
        (row(9, 16, [1], sess=0, joins=[5]), r"line 2: waits for row 5"),
        (row(9, 16, [1], sess=1, dep=0), r"line 2: waits for row 0, which is of another session"),
        (row(9, 16, [1], hp=[1, 1]), r"line 2: hp is \[1, 1\]"),
        (row(9, 16, [1], hp=[0, 2]), r"line 2: hp is \[0, 2\]"),
        (row(9, 16, [1], hp=3), r"line 2: expected an object"),
        (row(9, 16, [1], sess="a"), r"line 2: expected an object"),
        (row(9, 0, [1], sess=0), r"line 2: input_length=0"),
        (row(9, 16, [1], sess=0, think_ms=-1), r"line 2: think_ms is negative"),
        ({"input_length": 3, "sess": 0}, r"line 2: output_tokens is missing"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, bad: dict[str, Any], said: str) -> None:
    with pytest.raises(GapscopeError, match=said):
        load_trace(write(tmp_path / "w.jsonl", row(0, 16, [1], sess=0), bad))
