"""Mooncake traces: reading, block sizes, keys, and what is wrong with a bad one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from engine import knobs
from engine.errors import GapscopeError
from engine.replay import simulate
from engine.replay.tables import Tables
from engine.timing import build_timing
from engine.traces import find_trace, keep_trace, load_trace, stored_trace
from engine.traces.tree import Edge, Trace
from engine.workload.content import NO_KEY, InternedKeys
from engine.workload.hash_ids import ChainedHashIds, block_keys_of
from tests.engine.public_files import PUBLIC

CONVERSATIONS = PUBLIC / "mooncake" / "conversation_trace_head2000.jsonl"


def row(
    session: str | None = "s", tokens: int = 32, output: int = 8, ids: tuple[int, ...] = (1, 2), **more: Any
) -> dict[str, Any]:
    fields = {"input_length": tokens, "output_length": output, "hash_ids": list(ids), **more}
    return fields if session is None else {"session_id": session, **fields}


def write(path: Path, *rows: dict[str, Any] | bytes) -> Path:
    path.write_bytes(b"".join((r if isinstance(r, bytes) else orjson.dumps(r)) + b"\n" for r in rows))
    return path


def test_sessions_become_plays_and_delays_think_times(tmp_path: Path) -> None:
    file = write(
        tmp_path / "w.jsonl",
        row("a", 32, 8, (1, 2), timestamp=1500),
        row("b", 16, 4, (1,), timestamp=1700),
        row("a", 64, 2, (1, 2, 3, 4), delay=2.5),
    )
    trace = load_trace(file)
    assert (trace.name, trace.format, trace.hash_block_tokens, len(trace.digest)) == ("w", "mooncake", 16, 64)
    assert [(p.source_trace_id, p.arrival_ns) for p in trace.plays] == [("a", 1_500_000_000), ("b", 1_700_000_000)]
    first, second = trace.plays[0].conversations[0].turns
    assert (first.prompt_tokens, first.output_tokens, first.think_ns, list(first.hash_ids or ())) == (32, 8, 0, [1, 2])
    assert (second.prompt_tokens, second.think_ns) == (64, 2_500_000)


def test_a_line_without_a_session_is_a_play_of_its_own(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path / "w.jsonl", row(None, timestamp=0), row(None, timestamp=5)))
    assert [p.source_trace_id for p in trace.plays] == ["line1", "line2"]


@pytest.mark.parametrize(
    ("rows", "block"),
    [
        ([(512, 1), (700, 2), (1500, 3)], 512),  # rounded up
        ([(511, 0), (512, 1), (1500, 2)], 512),  # rounded down
        ([(48, 3), (96, 6)], 16),
        ([(100, 1), (130, 2)], 128),  # 100 to 129 would do: the power of two
    ],
)
def test_the_block_size_is_the_one_that_explains_all_lines(
    tmp_path: Path, rows: list[tuple[int, int]], block: int
) -> None:
    lines = [row(f"s{n}", tokens, ids=tuple(range(count))) for n, (tokens, count) in enumerate(rows)]
    assert load_trace(write(tmp_path / "w.jsonl", *lines)).hash_block_tokens == block


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b'{"session_id": "s", "input_len', "line 2: not valid JSON"),
        (b"[1, 2]", "line 2: expected an object"),
        (row("t", tokens=0), "line 2: input_length=0"),
        (row("t", output=-1), "line 2: .*output_length=-1"),
        (row("t", tokens="many"), "line 2"),
        ({"input_length": 3, "output_length": 3}, "line 2: hash_ids is missing"),
        (row("s"), "line 2: a later turn of its session without delay"),
        ({**row("t"), "hash_ids": [1, "2"]}, "line 2: .*hash_ids of whole numbers"),
        ({**row("t"), "hash_ids": [1, 2.5]}, "line 2: .*hash_ids of whole numbers"),
        (row("s", delay=-1), "line 2: .*delay=-1"),
        (row("s", delay=float("nan")), "line 2: .*delay"),
        (row("s", timestamp=5), "line 2: a later turn of its session without delay"),  # its first turn has no time
        (row("t", timestamp=1e300), "line 2: .*timestamp"),
        (row("t", 1000, ids=(1, 2)), "fit no single block size"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, bad: Any, said: str) -> None:
    with pytest.raises(GapscopeError, match=said):
        load_trace(write(tmp_path / "w.jsonl", row("s"), bad))


def test_other_names_arrays_and_requests_without_output(tmp_path: Path) -> None:
    file = tmp_path / "w.json"
    rows = [
        {"session_id": 7, "input_tokens": 32, "output_tokens": 0, "hash_ids": [1, 2], "created_time": 1500},
        {
            "session_id": 7,
            "input_tokens": 48,
            "output_tokens": 4,
            "hash_ids": [1, 2, 3],
            "delay_ms": 2.5,
            "priority": 1,
        },
    ]
    file.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
    trace = load_trace(file)
    (play,) = trace.plays
    assert (play.source_trace_id, play.arrival_ns) == ("7", 1_500_000_000)
    assert [(t.output_tokens, t.think_ns) for t in play.conversations[0].turns] == [(1, 0), (4, 2_500_000)]
    assert trace.notes["requests without output"].startswith("1,")
    assert trace.notes["priorities"].startswith("of 1 requests")
    rows[1]["hash_ids"] = [1.5]
    file.write_bytes(orjson.dumps(rows))
    with pytest.raises(GapscopeError, match=r"w\.json, item 2: .*hash_ids of whole numbers"):
        load_trace(file)


def test_a_later_turn_with_a_time_waits_for_it_and_for_the_turn_before(tmp_path: Path) -> None:
    file = write(tmp_path / "w.jsonl", row("a", timestamp=1000), row("a", timestamp=1800), row("a", delay=3))
    first, second, third = load_trace(file).plays[0].conversations[0].turns
    assert (first.edges, first.not_before_ns) == (None, None)
    assert second.edges == (Edge("a", 0, "completion", 0, "sequence"),)
    assert second.not_before_ns == 800_000_000
    assert (third.edges, third.think_ns) == (None, 3_000_000)


def prompts_of(trace: Trace, block_size: int = 4) -> list[list[tuple[int, list[int]]]]:
    """Length and keys of the full blocks of each prompt, by session."""
    keys = block_keys_of(trace, block_size)
    walks = [keys.walk(p.conversations[0], None, 0) for p in trace.plays]
    return [[(n, list(k[: n // block_size])) for n, k in zip(w.prompt_tokens, w.keys, strict=True)] for w in walks]


def test_lengths_alone_add_up_and_nothing_is_shared(tmp_path: Path) -> None:
    rows = [
        {"session_id": "a", "input_length": 1100, "output_length": 6},
        {"session_id": "a", "input_length": 600, "output_length": 5, "delay": 0},
        {"input_length": 1100, "output_length": 5},
    ]
    trace = load_trace(write(tmp_path / "w.jsonl", *rows))
    assert trace.hash_block_tokens is None
    first, second = prompts_of(trace)
    assert [tokens for tokens, _ in first] == [1100, 1100 + 6 + 600]
    assert first[1][1][:275] == first[0][1]  # its own beginning is found again
    assert not set(first[1][1]) & set(second[0][1])
    assert "lengths only" in trace.notes["prompts"]


def test_later_turns_may_name_only_what_they_add(tmp_path: Path) -> None:
    rows = [
        row("a", 4, 2, (1,), timestamp=0),
        row("a", 2, 1, (2,), delay=5),
        row("b", 8, 2, (1, 9), timestamp=0),
    ]
    trace = load_trace(write(tmp_path / "w.jsonl", *rows))
    first, second = prompts_of(trace)
    assert [tokens for tokens, _ in first] == [4, 8]  # 4 of the prompt, 2 generated, 2 added
    assert first[0][1] == first[1][1][:1] == second[0][1][:1]  # block 1 in each
    assert first[1][1][1] != second[0][1][1]
    assert "what it adds" in trace.notes["prompts"]
    assert trace.plays[0].conversations[0].turns[1].think_ns == 5_000_000


def test_one_turn_that_begins_like_the_one_before_makes_prompts_whole(tmp_path: Path) -> None:
    rows = [row("a", 8, 2, (1, 2)), row("a", 8, 1, (3, 4), delay=0), row("a", 12, 1, (3, 4, 5), delay=0)]
    trace = load_trace(write(tmp_path / "w.jsonl", *rows))
    assert [tokens for tokens, _ in prompts_of(trace)[0]] == [8, 8, 12]
    assert "prompts" not in trace.notes


def test_prompts_that_are_text_are_counted_and_refused(tmp_path: Path) -> None:
    rows = [row("a"), {"text_input": "hello", "output_length": 3}, {"messages": [], "output_length": 3}]
    with pytest.raises(GapscopeError, match=r"line 2 and 1 more give the prompt as text, .* tokenizer"):
        load_trace(write(tmp_path / "w.jsonl", *rows))
    with pytest.raises(GapscopeError, match="line 1 and 0 more give the prompt as text"):
        load_trace(write(tmp_path / "w.jsonl", rows[1]))


@pytest.mark.skipif(not CONVERSATIONS.exists(), reason="the public trace is not here")
def test_the_public_conversation_trace_is_replayed_at_its_arrivals() -> None:
    trace = load_trace(CONVERSATIONS)
    assert (len(trace.plays), trace.hash_block_tokens) == (2000, 512)
    assert max(p.arrival_ns or 0 for p in trace.plays) == 669_000_000_000
    values = knobs.resolve(
        {"arrivals": "trace", "timing": "fixed", "block_size": 512, "kv_blocks": 4000, "duration_s": 30}
        | {"max_num_batched_tokens": 16384, "record_events": False}
    )
    result = simulate(trace, values, build_timing(values))
    sent = Tables(result).requests()
    arrivals = [r["timestamp"] for r in map(orjson.loads, CONVERSATIONS.read_bytes().splitlines())]
    assert len(sent) == sum(at < 30_000 for at in arrivals)
    assert sorted(sent["dispatched_ns"].to_pylist()) == sorted(at * 1_000_000 for at in arrivals if at < 30_000)


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GapscopeError, match="no known trace format"):
        load_trace(write(tmp_path / "w.txt", b"hello"))
    with pytest.raises(GapscopeError, match="cannot be read"):
        load_trace(tmp_path / "absent.jsonl")
    with pytest.raises(GapscopeError, match="none of"):
        find_trace([tmp_path], "ab" * 32)


def test_a_trace_is_found_by_its_digest(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    file = tmp_path / "traces" / f"w-{'ab' * 6}.parquet"
    file.touch()
    assert find_trace([tmp_path / "none", tmp_path], "ab" * 32) == file


def keys_for(tmp_path: Path, block_size: int, *rows: dict[str, Any]) -> tuple[Any, list[list[list[int]]]]:
    trace = load_trace(write(tmp_path / "w.jsonl", *rows))
    keys = block_keys_of(trace, block_size)
    walks = [keys.walk(p.conversations[0], None, 0) for p in trace.plays]
    return keys, [[list(k) for k in w.keys] for w in walks]


def test_chained_ids_are_keys_and_end_with_the_full_blocks_of_the_prompt(tmp_path: Path) -> None:
    rows = [row("a", 40, ids=(7, 8, 9)), row("a", 64, ids=(7, 8, 10, 11), delay=0), row("b", 16, ids=(7,))]
    keys, walked = keys_for(tmp_path, 16, *rows)
    assert isinstance(keys, ChainedHashIds)
    assert walked == [[[7, 8], [7, 8, 10, 11]], [[7]]]
    assert keys.parents(np.array([7, 8, 11])).tolist() == [NO_KEY, 7, 10]


def test_a_hash_block_of_several_engine_blocks_is_split(tmp_path: Path) -> None:
    keys, walked = keys_for(tmp_path, 16, row("a", 100, ids=(3, 5)), row("b", 64, ids=(3,)))
    assert walked[0][0][:4] == walked[1][0]  # the 64 tokens of id 3
    assert len(walked[0][0]) == 6
    parents = keys.parents(np.array(walked[0][0]))
    assert parents.tolist() == [NO_KEY, *walked[0][0][:-1]]
    again = keys.walk(load_trace(tmp_path / "w.jsonl").plays[0].conversations[0], None, 1)
    assert not set(again.keys[0]) & set(walked[0][0])
    assert keys.parents(np.array(again.keys[0])).tolist() == [NO_KEY, *again.keys[0][:-1]]


@pytest.mark.parametrize("ids", [((1, 2), (3, 2)), ((1, 1 << 63), (1, 5)), ((1, 1 << 60), (1, 5)), ((-4, 2), (1, 3))])
def test_ids_that_do_not_name_their_prefix_are_named_anew(
    tmp_path: Path, ids: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    rows = [row(f"s{n}", ids=pair) for n, pair in enumerate(ids)]
    keys, walked = keys_for(tmp_path, 16, *rows)
    assert isinstance(keys, InternedKeys)
    assert (walked[0][0][0] == walked[1][0][0]) is (ids[0][0] == ids[1][0])
    assert walked[0][0][1] != walked[1][0][1]  # equal ids after different ones are different blocks


def test_an_engine_block_that_does_not_divide_the_hash_block_is_refused(tmp_path: Path) -> None:
    for size in (32, 12):
        with pytest.raises(GapscopeError, match=f"blocks of 16 tokens but block_size={size}"):
            keys_for(tmp_path, size, row())


def test_a_stored_trace_is_what_its_name_says(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    trace = load_trace(write(tmp_path / "w.jsonl", row("s")))
    keep_trace(tmp_path / "w.jsonl", trace, [tmp_path])
    assert stored_trace([tmp_path], trace.digest) == trace
    (file,) = (tmp_path / "traces").iterdir()
    file.write_bytes(file.read_bytes() + b"\n")
    with pytest.raises(GapscopeError, match=f"was altered: its digest is .*, expected {trace.digest[:12]}"):
        stored_trace([tmp_path], trace.digest)
