"""Traces of lengths and arrivals, of chats, and of prompts as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from engine.errors import GapscopeError
from engine.traces import keep_trace, load_trace, stored_trace
from engine.traces.tree import Edge, Trace
from engine.workload.hash_ids import block_keys_of
from tests.engine.client_harness import settle

S = 1_000_000_000


def write(path: Path, *rows: dict[str, Any] | str) -> Path:
    lines = (r.encode() if isinstance(r, str) else orjson.dumps(r) for r in rows)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def prompts(trace: Trace) -> list[list[int]]:
    """Lengths of the prompts of each play's first conversation."""
    keys = block_keys_of(trace, 16)
    return [keys.walk(p.conversations[0], None, 0).prompt_tokens for p in trace.plays]


# -- Bailian ---------------------------------------------------------------------------------------------------


def chat(key: int, parent: int, at: float, tokens: int, *ids: int, output: int = 5) -> dict[str, Any]:
    return {
        "chat_id": key,
        "parent_chat_id": parent,
        "timestamp": at,
        "input_length": tokens,
        "output_length": output,
        "type": "text",
        "turn": 1,
        "hash_ids": list(ids),
    }


def test_chats_are_chains_of_parents_due_at_their_times(tmp_path: Path) -> None:
    rows = [chat(1, -1, 10.5, 20, 7, 8), chat(2, -1, 11, 16, 7), chat(3, 1, 13.25, 40, 7, 8, 9), chat(4, 99, 14, 16, 5)]
    trace = load_trace(write(tmp_path / "b", *rows))
    assert (trace.format, trace.hash_block_tokens) == ("bailian", 16)
    assert [(p.source_trace_id, p.arrival_ns) for p in trace.plays] == [
        ("1", round(10.5 * S)),
        ("2", 11 * S),
        ("4", 14 * S),
    ]
    first, second = trace.plays[0].conversations[0].turns
    assert (first.edges, first.start_ns) == (None, 0)
    assert second.edges == (Edge("1", 0, "completion", 0, "sequence"),)
    assert second.not_before_ns == round(2.75 * S)
    assert prompts(trace) == [[20, 40], [16], [16]]
    slow = {r.name: r.scheduled for r in settle(trace, {"arrivals": "trace"}, 3000)[0]}
    assert slow == {"1/0": 0, "2/0": 500, "1/1": 3000, "4/0": 3500}  # its time would be 2750: not before the response
    assert {r.name: r.scheduled for r in settle(trace, {"arrivals": "trace"}, 100)[0]} == slow | {"1/1": 2750}
    assert trace.notes["chats without their parent"].startswith("1,")


def test_of_two_chats_after_one_the_second_is_a_child(tmp_path: Path) -> None:
    rows = [chat(1, -1, 0, 16, 1), chat(2, 1, 3, 16, 1, output=0), chat(3, 1, 2, 16, 1), chat(4, 2, 9, 16, 1)]
    trace = load_trace(write(tmp_path / "b", *rows))
    root, child = trace.plays[0].conversations
    assert (len(root.turns), len(child.turns)) == (2, 2)  # 1 and 3; 2 and 4
    assert (child.conversation_id, child.parent, child.after_turn, child.depth) == ("2", "1", 0, 1)
    assert root.turns[0].spawn == ("2",)
    assert child.turns[0].edges == (Edge("1", 0, "completion", 0, "spawn"),)
    assert child.turns[1].edges == (Edge("2", 0, "completion", 0, "sequence"),)
    assert trace.notes["requests without output"].startswith("1,")


def test_equal_blocks_after_different_ones_are_not_shared(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path / "b", chat(1, -1, 0, 32, 5, 6), chat(2, -1, 0, 32, 4, 6)))
    keys = block_keys_of(trace, 16)
    one, two = (list(keys.walk(p.conversations[0], None, 0).keys[0]) for p in trace.plays)
    assert not set(one) & set(two)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (chat(1, -1, 0, 16, 1), "line 2: chat_id 1 is there already"),
        (chat(2, -1, 0, 17, 1), "line 2: 1 hash_ids, expected 2"),
        (chat(2, -1, 0, 0), "line 2: input_length is 0"),
        ({**chat(2, -1, 0, 16, 1), "timestamp": "x"}, "line 2: timestamp is"),
        (chat(2, 2, 0, 16, 1), "1 chats are each other's parents"),
    ],
)
def test_bad_chats_are_named(tmp_path: Path, bad: dict[str, Any], said: str) -> None:
    with pytest.raises(GapscopeError, match=said):
        load_trace(write(tmp_path / "b", chat(1, -1, 0, 16, 1), bad))


# -- Applied Compute -------------------------------------------------------------------------------------------

AGENT = {
    "num_turns": 2,
    "input_prompt_length": 100,
    "assistant_response_length": [10, 20],
    "tool_call_output_length": [30, 40],
    "tool_call_latency": [0.5, 1.25],
    "final_assistant_response_length": 50,
}


def test_tools_add_their_output_and_take_their_time(tmp_path: Path) -> None:
    """100; then 10 generated and 30 of the tool; then 20 and 40."""
    one_turn = {**AGENT, "num_turns": 0} | {key: [] for key in list(AGENT)[2:5]}
    trace = load_trace(write(tmp_path / "a", AGENT, one_turn))
    assert prompts(trace) == [[100, 140, 200], [100]]
    turns = trace.plays[0].conversations[0].turns
    assert [(t.output_tokens, t.think_ns) for t in turns] == [(10, 0), (20, S // 2), (50, 5 * S // 4)]
    assert trace.plays[0].arrival_ns is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_turns": 3}, "line 1: num_turns is 3 but there are 2 of assistant_response_length"),
        ({"tool_call_latency": [1, -1]}, "line 1: tool_call_latency is"),
        ({"input_prompt_length": 0}, "line 1: input_prompt_length is 0"),
    ],
)
def test_bad_agent_rows_are_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(GapscopeError, match=said):
        load_trace(write(tmp_path / "a", {**AGENT, **change}))


# -- arrivals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines",
    [
        ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", "5,ChatGPT,472,18,490,chat log",
         "45.25,GPT-4,1087,0,1087,API log"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46.2500000,472,18",
         "2023-11-16 18:16:26.5000000,1087,0"),
        ("arrived_at,num_prefill_tokens,num_decode_tokens", "5.0,472.0,18.0", "45.25,1087,0"),
        ("\ufeffrequest_id,arrival_timestamp,prompt_size,token_size", "0,5,472,18", "1,45.25,1087,0"),
        ('{"arrived_at": 5, "num_prefill_tokens": 472, "num_decode_tokens": 18}',
         '{"arrived_at": 45.25, "num_prefill_tokens": 1087, "num_decode_tokens": 0}'),
    ],
)  # fmt: skip
def test_arrivals_and_lengths_of_several_tools(tmp_path: Path, lines: tuple[str, ...]) -> None:
    file = write(tmp_path / "requests", *lines)
    trace = load_trace(file)
    first, second = trace.plays
    assert second.arrival_ns is not None
    assert first.arrival_ns is not None
    assert second.arrival_ns - first.arrival_ns == round(40.25 * S)
    assert prompts(trace) == [[472], [1087]]
    assert [p.conversations[0].turns[0].output_tokens for p in trace.plays] == [18, 1]
    assert "lengths only" in trace.notes["prompts"]
    assert trace.notes["requests without output"].startswith("1,")
    keep_trace(file, trace, [tmp_path])
    assert stored_trace([tmp_path], trace.digest) == trace


@pytest.mark.parametrize("bad", ["x,5,5", "5,0,5", "5,5", "5,5.5,5", "5,5,-1", "nan,5,5", "2023-13-45,5,5", "5,inf,5"])
def test_bad_arrivals_are_named(tmp_path: Path, bad: str) -> None:
    with pytest.raises(GapscopeError, match=r"line 3: arrival .*expected seconds or a date"):
        load_trace(write(tmp_path / "r", "arrived_at,num_prefill_tokens,num_decode_tokens", "1,5,5", bad))


# -- prompts as text -------------------------------------------------------------------------------------------


def test_texts_with_lengths_are_played_and_equal_texts_are_equal(tmp_path: Path) -> None:
    rows = [
        {"session_id": "a", "turns": [
            {"text": "hello", "input_length": 32, "output_length": 4, "timestamp": 1000},
            {"text": "more", "input_tokens": 12, "output_tokens": 0, "delay": 2.5},
            {"text": "late", "input_tokens": 12, "output_tokens": 3, "timestamp": 4000},
        ]},
        {"text": "hello", "input_length": 32, "output_length": 4},
        {"text": "hello you", "input_length": 32, "output_length": 4},
    ]  # fmt: skip
    trace = load_trace(write(tmp_path / "t", *rows))
    assert prompts(trace) == [[32, 32 + 4 + 12, 48 + 1 + 12], [32], [32]]
    keys = block_keys_of(trace, 16)
    one, two, three = (list(keys.walk(p.conversations[0], None, 0).keys[0])[:2] for p in trace.plays)
    assert one == two
    assert not set(one) & set(three)
    turns = trace.plays[0].conversations[0].turns
    assert [(t.think_ns, t.not_before_ns) for t in turns] == [(0, None), (2_500_000, None), (0, 3 * S)]
    assert trace.plays[0].arrival_ns == S


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"text": "a", "output_length": 3}, {"text": "b"}], "line 1 and 1 more give the prompt as text"),
        ([{"session_id": "a", "turns": [{"text": "a"}, {"text": "b"}, {"text": "c"}]}], "line 1 and 2 more"),
        ([{"data": [{"session_id": "a", "payloads": [{"messages": []}, {"messages": []}]}]}], "line 1 and 1 more"),
        ([{"text": "a", "input_length": 5}], "line 1: output_tokens is missing"),
        ([{"text": "a", "input_length": 0, "output_length": 3}], "line 1: expected turns with whole numbers"),
    ],
)
def test_texts_without_lengths_are_counted_and_refused(tmp_path: Path, rows: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(GapscopeError, match=said):
        load_trace(write(tmp_path / "t", *rows))
