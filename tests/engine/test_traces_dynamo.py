"""Request traces of Dynamo: the right trees from sessions, their children and tool records."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import orjson
import pytest

from engine.errors import GapscopeError
from engine.traces import load_trace
from engine.traces.tree import Edge
from tests.engine.client_harness import settle

S = 1_000_000_000
T0 = 1_700_000_000_000  # ms


def end(
    name: str, start: float, stop: float, session: str | None = "s", parent: str | None = None, **more: Any
) -> dict[str, Any]:
    """A request from ``start`` to ``stop``, in seconds."""
    context = {"session_id": session} | ({"parent_session_id": parent} if parent else {})
    hashes = more.pop("hashes", [(1 << 63) + 5])
    request = {
        "request_id": name,
        "output_tokens": 7,
        "request_received_ms": T0 + start * 1000,
        "total_time_ms": (stop - start) * 1000,
        "replay": {"trace_block_size": 64, "input_length": 64 * len(hashes), "input_sequence_hashes": hashes},
    }
    row = {
        "schema": "dynamo.request.trace.v1",
        "event_type": "request_end",
        "event_time_unix_ms": T0 + stop * 1000,
        "request": request | more,
    }
    return row | ({"agent_context": context} if session else {})


def tool(session: str, **claude: Any) -> dict[str, Any]:
    return {
        "schema": "dynamo.request.trace.v1",
        "event_type": "tool_end",
        "event_time_unix_ms": T0,
        "agent_context": {"session_id": session},
        "tool": {"tool_call_id": "t", "tool_class": "Task", "claude": claude},
    }


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def test_requests_without_a_session_are_plays_at_their_arrivals(tmp_path: Path) -> None:
    rows = [end("b", 3, 4, None, hashes=[9, 1 << 63]), end("a", 1, 2, None, hashes=[9, 4])]
    folder = tmp_path / "shards"
    folder.mkdir()
    wrapped = [{"timestamp": 0, "event": {"event_type": "request_payload", "schema": rows[0]["schema"]}}]
    (folder / "0.jsonl.gz").write_bytes(gzip.compress(orjson.dumps(wrapped[0]) + b"\n" + orjson.dumps(rows[0])))
    (folder / "1.jsonl.gz").write_bytes(gzip.compress(orjson.dumps({"timestamp": 1, "event": rows[1]})))
    trace = load_trace(folder)
    assert (trace.format, trace.hash_block_tokens) == ("dynamo", 64)
    assert [(p.source_trace_id, p.arrival_ns) for p in trace.plays] == [("a", 0), ("b", 2 * S)]
    first, second = (p.conversations[0].turns[0] for p in trace.plays)
    assert (first.hash_ids or [])[0] == (second.hash_ids or [])[0]
    assert (first.hash_ids or [])[1] != (second.hash_ids or [])[1]
    assert (first.prompt_tokens, first.output_tokens, first.api_ns, first.edges) == (128, 7, S, None)


def test_a_session_thinks_between_its_requests(tmp_path: Path) -> None:
    (play,) = load_trace(write(tmp_path / "t", end("b", 3.5, 4), end("a", 1, 2))).plays
    assert [(t.think_ns, t.edges, t.start_ns) for t in play.conversations[0].turns] == [
        (0, None, 0),
        (round(1.5 * S), None, round(2.5 * S)),
    ]


def test_a_request_that_overlaps_follows_the_dispatch_of_the_one_before(tmp_path: Path) -> None:
    (play,) = load_trace(write(tmp_path / "t", end("a", 0, 20), end("b", 8, 9))).plays
    assert play.conversations[0].turns[1].edges == (Edge("s", 0, "dispatch", 8 * S, "sequence"),)


def test_a_child_is_launched_and_joined_where_the_tool_record_says(tmp_path: Path) -> None:
    """Parent p: requests at 0-1, 2-3 and 9-10. Its child c (4-5, 6-7): launched by the first, joined by the third."""
    rows = [
        end("p0", 0, 1, "p"),
        end("p1", 2, 3, "p"),
        end("c0", 4, 5, "c", "p"),
        end("c1", 6, 7, "c", "p"),
        end("p2", 9, 10, "p"),
        tool("p", source_request_id="p0", consumer_request_id="p2", child_session_id="c", execution_mode="blocking"),
    ]
    trace = load_trace(write(tmp_path / "t", *rows))
    (play,) = trace.plays
    parent, child = play.conversations
    assert (child.parent, child.after_turn, child.depth) == ("p", 0, 1)
    assert parent.turns[0].spawn == ("c",)
    assert child.turns[0].edges == (Edge("p", 0, "completion", 3 * S, "spawn"),)
    assert child.turns[1].edges == (Edge("c", 0, "completion", 1 * S, "sequence"),)
    assert parent.turns[1].edges == (Edge("p", 0, "completion", 1 * S, "sequence"),)
    assert parent.turns[2].edges == (  # 2 s after the last of both
        Edge("p", 1, "completion", 2 * S, "sequence"),
        Edge("c", 1, "completion", 2 * S, "join"),
    )
    assert "child sessions placed by time" not in trace.notes
    # With responses of 100 ms the child is over at 0.1 + 3 + 0.1 + 1 + 0.1, and the parent goes on 2 s later.
    sent = {request.name: request.scheduled for request in settle(trace, {"lanes": 1})[0]}
    assert sent == {"p/0": 0, "p/1": 1100, "c/0": 3100, "c/1": 4200, "p/2": 6300}


def test_a_background_child_is_not_joined(tmp_path: Path) -> None:
    launch = tool("p", source_request_id="p0", child_session_id="c", execution_mode="background")
    rows = [end("p0", 0, 1, "p"), end("c0", 2, 3, "c", "p"), end("p1", 4, 5, "p"), launch]
    parent, _ = load_trace(write(tmp_path / "t", *rows)).plays[0].conversations
    assert parent.turns[1].edges == (Edge("p", 0, "completion", 3 * S, "sequence"),)


def test_without_a_tool_record_times_tell_and_a_note_says_so(tmp_path: Path) -> None:
    """The child started while the parent's second request was running; the parent's third starts after its end."""
    rows = [
        end("p0", 0, 1, "p"),
        end("p1", 2, 6, "p"),
        end("c0", 3, 7, "c", "p"),
        end("p2", 8, 9, "p"),
    ]
    trace = load_trace(write(tmp_path / "t", *rows))
    parent, child = trace.plays[0].conversations
    assert child.after_turn == 1
    assert child.turns[0].edges == (Edge("p", 1, "dispatch", 1 * S, "spawn"),)
    assert parent.turns[2].edges == (
        Edge("p", 1, "completion", 1 * S, "sequence"),
        Edge("c", 0, "completion", 1 * S, "join"),
    )
    assert trace.notes["child sessions placed by time"].startswith("1:")


def test_a_child_whose_parent_is_not_in_the_trace_is_a_play(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path / "t", end("c0", 0, 1, "c", "gone"), end("a", 0, 1, "a", output_tokens=0)))
    assert sorted(p.source_trace_id for p in trace.plays) == ["a", "c"]
    assert trace.notes["sessions without their parent"].startswith("1,")
    assert trace.notes["requests without output"].startswith("1,")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (end("a", 0, 1), "line 2: the request 'a' ended before"),
        (end("b", 0, 1, None), "line 2: 1 of 2 requests have no agent_context"),
        (end("b", 0, 1, replay=None), "line 2: request.replay is null"),
        (end("b", 0, 1, request_received_ms="x"), "line 2: request_received_ms is 'x'"),
        (end("b", 0, 1, request_received_ms=None, total_time_ms=None), "line 2: neither request_received_ms"),
        ({**end("b", 0, 1), "schema": "v2"}, "line 2: schema is 'v2'"),
        (
            end("b", 0, 1, replay={"trace_block_size": 64, "input_length": 65, "input_sequence_hashes": [1]}),
            "line 2: 1 input_sequence_hashes for 65 tokens",
        ),
        (
            end("b", 0, 1, replay={"trace_block_size": 16, "input_length": 16, "input_sequence_hashes": [1]}),
            "line 2: trace_block_size is 16 here and 64 before",
        ),
        (end("b", 0, 1, "s", "t"), None),
    ],
)
def test_bad_records_are_named(tmp_path: Path, bad: dict[str, Any], said: str | None) -> None:
    file = write(tmp_path / "t", end("a", 0, 1), bad)
    if said is None:
        assert len(load_trace(file).plays) == 1
        return
    with pytest.raises(GapscopeError, match=said):
        load_trace(file)


def test_sessions_that_are_each_others_parents_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GapscopeError, match=r"each other.s parents: (x -> y -> x|y -> x -> y)"):
        load_trace(write(tmp_path / "t", end("a", 0, 1, "x", "y"), end("b", 0, 1, "y", "x")))
    with pytest.raises(GapscopeError, match="no request_end record"):
        load_trace(write(tmp_path / "t", tool("p")))
