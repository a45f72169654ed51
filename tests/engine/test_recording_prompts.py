"""Token ids of prompts: as long as the replay says, and equal exactly where its names of blocks are equal."""

from __future__ import annotations

import asyncio
import hashlib
import time
from pathlib import Path

import numpy as np
import pytest
from test_traces_docs import examples

from engine.knobs import resolve
from engine.recording.client.answer import Answer, Chunk
from engine.recording.client.load import Exchange, Load
from engine.recording.client.prompts import Prompt, TokenPrompts
from engine.traces import load_trace
from engine.traces.compact import write_compact
from engine.traces.content import block_keys
from engine.traces.prompts import PlayPrompts, TokenSource, load_played
from engine.workload.hash_ids import block_keys_of
from engine.workload.primed import make_client

TRACES = [(name, text) for name, text, *_ in examples()]


def play(path: Path, make_up: bool = True, **knobs: object) -> list[Exchange]:
    """Every request of a load on a server that answers at once, with other ids each time."""
    trace, source = load_played(path)
    client = make_client(
        trace, resolve({"think_scale": 0, **knobs}), block_keys_of(trace, trace.hash_block_tokens or 16)
    )
    answered = 0

    async def send(name: str, prompt: Prompt, tokens: int) -> Answer:
        nonlocal answered
        await asyncio.sleep(0)
        ids = [10_000 + answered * 1000 + n for n in range(tokens)]
        answered += 1
        now = time.monotonic_ns()
        return Answer(now, now, now, "ok", None, [Chunk(now, tokens, True)], ids)

    exchanges: list[Exchange] = []
    load = Load(client, TokenPrompts(source, own_outputs=not make_up), send, "t", exchanges.append)
    asyncio.run(load.play())
    assert load.problem is None
    return exchanges


@pytest.mark.parametrize(("name", "text"), TRACES)
def test_every_format_is_sent_with_the_lengths_and_beginnings_of_the_replay(
    name: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / "t").write_text(text, encoding="utf-8")
    exchanges = play(tmp_path / "t", lanes=4)
    trace = load_trace(tmp_path / "t")
    assert len(exchanges) == sum(len(c.turns) for p in trace.plays for c in p.conversations)
    size = 4 if trace.hash_block_tokens is None else trace.hash_block_tokens // 4
    keys = block_keys_of(trace, size)
    mine: list[int] = []
    theirs: list[int] = []
    _, source = load_played(tmp_path / "t")
    for exchange in exchanges:
        talk, turn = exchange.talk, exchange.turn
        assert exchange.prompt.tokens == talk.walk.prompt_tokens[turn]
        assert exchange.asked_tokens == talk.conversation.turns[turn].output_tokens
        ids = PlayPrompts(talk.live.play, source, lambda *_: None).of(talk.conversation.conversation_id, turn)
        assert ids is not None
        base = None
        if talk.conversation.mode == "fork" and talk.parent is not None:
            walk = keys.walk(talk.parent.conversation, None, 0)
            base = walk.marks.get(talk.conversation.after_turn or 0)
        named = keys.walk(talk.conversation, base, 0).keys[turn]
        whole = min(len(ids) // size, len(named))
        mine += block_keys(ids, size)[:whole]
        theirs += list(named[:whole])
    # One name of ours for one of theirs, and the other way round.
    assert len(set(zip(mine, theirs, strict=True))) == len(set(mine)) == len(set(theirs))


def test_a_compiled_trace_is_sent_with_made_up_ids_that_share_alike(tmp_path: Path) -> None:
    text = next(text for name, text in TRACES if name == "agentic-trace/1")
    (tmp_path / "t").write_text(text, encoding="utf-8")
    write_compact(load_trace(tmp_path / "t"), tmp_path / "c.parquet")
    given, made = (load_played(tmp_path / name)[1] for name in ("t", "c.parquet"))
    assert given.given
    assert not made.given
    lengths = [sorted(e.prompt.tokens or 0 for e in play(tmp_path / name)) for name in ("t", "c.parquet")]
    assert lengths[0] == lengths[1]


def test_made_up_ids_stay_in_their_range_and_differ_by_content_and_number() -> None:
    source = TokenSource(low=300, high=310)
    ids = source.ids("a", 5000)
    assert set(ids.tolist()) == set(range(300, 310))
    assert np.array_equal(source.ids("a", 100), ids[:100])
    assert not np.array_equal(source.ids("b", 100), ids[:100])
    assert not np.array_equal(source.ids("a", 100, number=1), ids[:100])
    assert ids[:3].tolist() == [300 + mixed("0:a", n) % 10 for n in range(3)]  # the same on every machine


def mixed(name: str, place: int) -> int:
    """SplitMix64's finishing steps over a place in a content, in whole numbers of any size."""
    most = (1 << 64) - 1
    value = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") + place
    value = value * 0x9E3779B97F4A7C15 & most
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & most
    value = (value ^ value >> 27) * 0x94D049BB133111EB & most
    return value ^ value >> 31


def test_concurrency_makes_up_outputs_so_that_no_request_waits_for_another(tmp_path: Path) -> None:
    text = next(text for name, text in TRACES if name == "mooncake")
    (tmp_path / "t").write_text(text, encoding="utf-8")
    exchanges = play(tmp_path / "t", arrivals="concurrency", lanes=2)
    assert len(exchanges) == 3
    assert all(e.talk.live.turns == 1 for e in exchanges)
