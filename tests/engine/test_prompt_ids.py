"""Prompts that begin alike share one array, and read as if each had its own."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.traces import load_trace
from engine.traces.local_ids import LocalIds
from engine.traces.prompt_ids import PromptIds, begins_with, share_beginnings
from engine.traces.tree import Conversation, Play, Trace, Turn
from engine.workload.hash_ids import ChainedHashIds, block_keys_of

_few = st.lists(st.integers(0, 3), max_size=6)


@settings(deadline=None, max_examples=200)
@given(prompts=st.lists(_few, min_size=1, max_size=8), at=st.integers(-8, 8), step=st.sampled_from([1, 2, -1, -3]))
def test_prompts_one_after_the_other_read_as_given(prompts: list[list[int]], at: int, step: int) -> None:
    shared = [PromptIds(array("q", prompts[0]))]
    for prompt in prompts[1:]:
        shared.append(shared[-1].then(array("q", prompt)))
    for prompt, ids in zip(prompts, shared, strict=True):
        assert list(ids) == prompt
        assert len(ids) == len(prompt)
        assert ids == tuple(prompt)
        assert np.asarray(ids).tolist() == prompt
        assert ids[at:].tolist() == prompt[at:]
        assert ids[::step].tolist() == prompt[::step]
        assert [ids[n] for n in range(-len(prompt), len(prompt))] == prompt + prompt
        assert ids != (*prompt, 9)
        with pytest.raises(IndexError):
            ids[len(prompt)]
        for other, theirs in zip(prompts, shared, strict=True):
            same = next((n for n in range(len(prompt)) if prompt[n : n + 1] != other[n : n + 1]), len(prompt))
            assert ids.common(theirs) == ids.common(array("q", other)) == same
            assert begins_with(ids, theirs) == (prompt[: len(other)] == other)


def test_a_growing_conversation_holds_its_ids_once() -> None:
    prompts = [array("q", range(length)) for length in (3, 5, 5, 4, 9)]
    shared = [PromptIds(prompts[0])]
    for prompt in prompts[1:]:
        shared.append(shared[-1].then(prompt))
    assert all(ids.held is shared[0].held for ids in shared)
    assert len(shared[0].held) == 9
    fork = shared[1].then(array("q", [0, 1, 2, 3, 4, 77]))  # where the conversation went on with 5
    assert fork.held is not shared[0].held
    assert list(shared[4]) == list(range(9))


def test_forks_and_conversations_of_a_trace_share() -> None:
    root = [Turn(1, 0, prompt_tokens=32, hash_ids=array("q", [1, 2]), spawn=("c",))]
    root.append(Turn(1, 0, prompt_tokens=48, hash_ids=array("q", [1, 2, 3])))
    child = [Turn(1, 0, prompt_tokens=32, hash_ids=array("q", [1, 2]))]
    talks = [Conversation("r", root), Conversation("c", child, "r", 0, "fork", 1)]
    trace = Trace("t", "f", "", [Play("r", talks)], 16)
    share_beginnings(trace)
    held = {id(t.hash_ids.held) for c in talks for t in c.turns if isinstance(t.hash_ids, PromptIds)}
    assert len(held) == 1
    assert [list(t.hash_ids or ()) for c in talks for t in c.turns] == [[1, 2], [1, 2, 3], [1, 2]]


@settings(deadline=None, max_examples=100)
@given(prompts=st.lists(_few, min_size=1, max_size=6))
def test_renumbered_prompts_are_equal_where_they_were(prompts: list[list[int]]) -> None:
    numbers = LocalIds()
    numbers.renumber([array("q", [0])])
    found = numbers.renumber([array("q", prompt) for prompt in prompts])
    for left, ids in zip(prompts, found, strict=True):
        for right, others in zip(prompts, found, strict=True):
            same = next((n for n in range(len(left)) if left[n : n + 1] != right[n : n + 1]), len(left))
            assert [a == b for a, b in zip(ids, others, strict=False)] == [
                n < same for n in range(min(len(left), len(right)))
            ]
            if right[: len(left)] == left and left:  # the longest that begins with it holds it
                assert any(len(o.held) >= len(right) and o.held is ids.held for o in found)


@settings(deadline=None, max_examples=60)
@given(
    grown=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4), min_size=1, max_size=4),
    factor=st.sampled_from([1, 4]),
    wrapped=st.integers(0, 2),
)
def test_block_keys_are_those_of_prompts_with_arrays_of_their_own(
    grown: list[list[int]], factor: int, wrapped: int
) -> None:
    def made(shared: bool) -> Trace:
        plays, unused = [], 1
        for number, adds in enumerate(grown):
            ids, turns = array("q", [0]), []
            for more in adds:
                ids = ids + array("q", range(unused, unused + more))
                unused += more
                turns.append(Turn(1, 0, prompt_tokens=len(ids) * 16 - 3, hash_ids=array("q", ids)))
            plays.append(Play(f"p{number}", [Conversation(f"p{number}", turns)]))
        trace = Trace("t", "f", "", plays, 16)
        if shared:
            share_beginnings(trace)
        return trace

    own, shared = (block_keys_of(made(how), 16 // factor) for how in (False, True))
    assert isinstance(own, ChainedHashIds)
    assert isinstance(shared, ChainedHashIds)
    for left, right in zip(made(False).plays, made(True).plays, strict=True):
        a = own.walk(left.conversations[0], None, wrapped)
        b = shared.walk(right.conversations[0], None, wrapped)
        assert [list(keys) for keys in a.keys] == [list(keys) for keys in b.keys]
        assert a.prompt_tokens == b.prompt_tokens
        assert len({id(chain) for chain in b.chains}) == 1
        for keys, chain in zip(b.keys, b.chains, strict=True):
            assert chain[: len(keys)] == keys
            column = np.asarray(keys, np.int64)
            assert (own.parents(column) == shared.parents(column)).all()


def test_a_mooncake_session_holds_its_ids_once(tmp_path: Path) -> None:
    rows = [
        {"session_id": "s", "input_length": 32 + 16 * n, "output_length": 4, "hash_ids": [*range(2 + n)]}
        for n in range(5)
    ]
    rows[0]["timestamp"] = 0
    (tmp_path / "t.jsonl").write_bytes(b"\n".join(orjson.dumps({**row, "delay": 0}) for row in rows))
    turns = load_trace(tmp_path / "t.jsonl").plays[0].conversations[0].turns
    assert len({id(t.hash_ids.held) for t in turns if isinstance(t.hash_ids, PromptIds)}) == 1
    assert [list(t.hash_ids or ()) for t in turns] == [row["hash_ids"] for row in rows]
