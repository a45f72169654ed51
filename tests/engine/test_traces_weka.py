"""Weka sessions: whose turn each request is and what it waits for, on small sessions written by hand."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from engine import knobs
from engine.errors import GapscopeError
from engine.replay import simulate
from engine.timing import build_timing
from engine.traces import load_trace, weka
from engine.traces.compact import write_compact
from engine.traces.tree import Conversation, Edge, Play, Trace, Turn
from engine.workload.hash_ids import ChainedHashIds, block_keys_of
from tests.engine.client_harness import settle
from tests.engine.public_files import PUBLIC

S = 1_000_000_000
BLOCK = 64


def request(
    t: float, *ids: int, api: float | None = 1.0, out: int = 10, tokens: int = 0, model: str = "m"
) -> dict[str, Any]:
    """A request whose prompt is the blocks ``ids`` and 10 tokens of the next."""
    row = {
        "t": t,
        "type": "s",
        "model": model,
        "in": tokens or len(ids) * BLOCK + 10,
        "out": out,
        "hash_ids": list(ids),
    }
    return row if api is None else {**row, "api_time": api}


def subagent(
    t: float, name: str, *requests: dict[str, Any], status: str = "completed", duration_ms: float | None = None
) -> dict[str, Any]:
    return {
        "t": t,
        "type": "subagent",
        "agent_id": name,
        "subagent_type": "Explore",
        "status": status,
        "duration_ms": duration_ms,
        "requests": list(requests),
    }


def session(*requests: dict[str, Any], name: str = "s", **more: Any) -> dict[str, Any]:
    return {"id": name, "block_size": BLOCK, "hash_id_scope": "local", "requests": list(requests), **more}


def write(path: Path, *sessions: Any) -> Path:
    path.write_bytes(b"\n".join(s if isinstance(s, bytes) else orjson.dumps(s) for s in sessions) + b"\n")
    return path


def load(folder: Path, *requests: dict[str, Any]) -> Trace:
    return load_trace(write(folder / "w.json", session(*requests)))


def conversations(trace: Trace) -> dict[str, Conversation]:
    return {c.conversation_id: c for play in trace.plays for c in play.conversations}


def starts(trace: Trace) -> dict[str, list[float]]:
    return {
        name: [t.start_ns / S for t in c.turns if t.start_ns is not None] for name, c in conversations(trace).items()
    }


def edge(name: str, turn: int, trigger: str, delay_s: float, relation: str) -> Edge:
    return Edge(name, turn, trigger, round(delay_s * S), relation)  # type: ignore[arg-type]


def sequence(name: str, turn: int, delay_s: float) -> Edge:
    return edge(name, turn, "completion", delay_s, "sequence")


def test_a_session_with_every_kind_of_edge(tmp_path: Path) -> None:
    """An agent launches a helper while its first request runs, waits for it only with its third request, launches a
    second helper that nobody waits for, and while that runs somebody sends a side request that shares its context.

    Main: turns 0, 1, 2, 3 at 0, 6, 10, 20 s. Helper a: 2 and 5 s. Helper b: 14 s. Side request: 12 s.
    """
    trace = load(
        tmp_path,
        request(0, 1, 2, 3, api=4),
        subagent(2, "a", request(2, 50, 51, api=2), request(5, 50, 51, 52, api=3)),
        request(6, 1, 2, 3, 4, api=1),
        request(10, 1, 2, 3, 4, 5, api=1),
        subagent(11, "b", request(14, 50, 60), status="async_launched"),
        request(12, 1, 2, 3, 9, api=2),
        request(20, 1, 2, 3, 4, 5, 6),
    )
    (play,) = trace.plays
    assert (trace.format, trace.hash_block_tokens, play.source_trace_id, play.arrival_ns) == ("weka", BLOCK, "s", None)
    assert starts(trace) == {"s": [0, 6, 10, 20], "s::aux:000": [12], "s::sa:a": [2, 5], "s::sa:b": [14]}
    found = conversations(trace)
    main, side, a, b = found["s"], found["s::aux:000"], found["s::sa:a"], found["s::sa:b"]
    assert [turn.edges for turn in main.turns] == [
        (),
        (sequence("s", 0, 2),),  # the helper runs until 8: nobody waits yet
        (sequence("s", 1, 3), edge("s::sa:a", 1, "completion", 2, "join")),
        (sequence("s", 2, 9), edge("s::aux:000", 0, "completion", 0, "barrier")),  # b is over, but nobody waited
    ]
    assert [turn.edges for turn in a.turns] == [
        (edge("s", 0, "dispatch", 2, "spawn"),),  # launched before the response had ended
        (sequence("s::sa:a", 0, 1),),
    ]
    assert [turn.edges for turn in b.turns] == [(edge("s", 2, "completion", 3, "spawn"),)]
    assert [turn.edges for turn in side.turns] == [(edge("s", 2, "completion", 1, "spawn"),)]
    assert [turn.spawn for turn in main.turns] == [("s::sa:a",), (), ("s::aux:000", "s::sa:b"), ()]
    assert [(c.parent, c.after_turn, c.mode, c.depth) for c in (main, side, a, b)] == [
        (None, None, "fresh", 0),
        ("s", 2, "fork", 1),
        ("s", 0, "fresh", 1),
        ("s", 2, "fresh", 1),
    ]
    assert [turn.think_ns / S for turn in main.turns] == [0, 2, 3, 9]
    assert [turn.api_ns for turn in main.turns] == [4 * S, S, S, S]
    assert [turn.prompt_tokens for turn in main.turns] == [3 * 64 + 10, 4 * 64 + 10, 5 * 64 + 10, 6 * 64 + 10]


def test_who_continues_whom(tmp_path: Path) -> None:
    """Two agents that were recorded as one list: each request continues the longest prompt it begins with."""
    trace = load(
        tmp_path,
        request(0, 1, 2),
        request(2, 1, 2, 3),  # continues 0
        request(2.5, 1, 2, 8),  # 2 has not ended, and is another prompt: a fork
        request(4, 1, 2, 8, 9),  # continues 2.5
        request(5, 1, 2, 3, 4),  # continues 2
        request(6, 1, 2, 8, 9, 10, model="n"),  # begins with 4, but is of another model: a fork
        request(8, 1, 2, 8, 9, 11),  # continues 4
    )
    assert starts(trace) == {"s": [0, 2, 5], "s::fa:000": [2.5, 4, 8], "s::aux:001": [6]}
    found = conversations(trace)
    # 2.5 shares blocks 1, 2 with what is then the main conversation's last request, which still runs.
    assert found["s::fa:000"].turns[0].edges == (edge("s", 1, "dispatch", 0.5, "spawn"),)
    assert (found["s::aux:001"].parent, found["s::aux:001"].after_turn, found["s::aux:001"].depth) == (
        "s::fa:000",
        1,
        2,
    )


def test_nothing_continues_a_request_that_still_runs(tmp_path: Path) -> None:
    trace = load(tmp_path, request(0, 1, 2, api=5), request(3, 1, 2, 3), request(6, 1, 2, 4))
    # The second starts while the first runs, so it is a fork although it begins with all of it. The third continues
    # the first, and waits for the fork, which had ended.
    assert starts(trace) == {"s": [0, 6], "s::aux:000": [3]}
    found = conversations(trace)
    assert found["s::aux:000"].turns[0].edges == (edge("s", 0, "dispatch", 3, "spawn"),)
    assert found["s"].turns[1].edges == (
        sequence("s", 0, 1),
        edge("s::aux:000", 0, "completion", 0, "barrier"),
    )


def test_an_edited_context_goes_on_in_its_conversation(tmp_path: Path) -> None:
    """The last block of the first prompt was edited, and later all but the first two were cut: one conversation."""
    trace = load(tmp_path, request(0, 1, 2, 3), request(5, 1, 2, 4, 5), request(9, 1, 2, 4, 5, 6), request(12, 1, 2, 7))
    assert starts(trace) == {"s": [0, 5, 9, 12]}
    assert conversations(trace)["s"].turns[3].edges == (sequence("s", 2, 2),)


def test_of_two_forks_the_one_that_shares_more_goes_on(tmp_path: Path) -> None:
    trace = load(tmp_path, request(0, 1, 2, 3, 4), request(5, 1, 7), request(8, 1, 2, 3, 9))
    assert starts(trace) == {"s": [0, 8], "s::aux:000": [5]}


def test_of_two_cuts_the_first_goes_on_and_the_second_goes_on_from_it(tmp_path: Path) -> None:
    trace = load(tmp_path, request(0, 1, 2, 3, 4), request(5, 1, 2, 7), request(8, 1, 2, 9))
    assert starts(trace) == {"s": [0, 5, 8]}


def test_after_an_hour_a_small_shared_beginning_is_no_continuation(tmp_path: Path) -> None:
    late = 3700
    assert starts(load(tmp_path, request(0, 1, 2, 3, 4), request(late, 1, 7))) == {"s": [0], "s::aux:000": [late]}
    assert starts(load(tmp_path, request(0, 1, 2, 3, 4), request(late, 1, 2, 7))) == {"s": [0, late]}  # half of it


def test_a_first_request_that_nothing_begins_like_opens_the_conversation(tmp_path: Path) -> None:
    trace = load(tmp_path, request(0, 90, out=5), request(2, 1, 2), request(4, 1, 2, 3))
    assert starts(trace) == {"s": [0, 2, 4]}


def test_a_conversation_of_its_own_starts_after_the_first_dispatch(tmp_path: Path) -> None:
    trace = load(tmp_path, request(0, 1, 2), request(3, 1, 2, 3), request(5, 70, 71), request(8, 70, 71, 72))
    assert starts(trace) == {"s": [0, 3], "s::fa:000": [5, 8]}
    # 5 s after the first dispatch, but not before the turn that had ended by then.
    assert conversations(trace)["s::fa:000"].turns[0].edges == (
        edge("s", 0, "dispatch", 5, "spawn"),
        edge("s", 1, "completion", 0, "barrier"),
    )


def test_sidecars_are_small_or_of_another_model(tmp_path: Path) -> None:
    big = 20_000  # tokens
    trace = load(
        tmp_path,
        request(0, 1, api=10),
        request(1, 2, 20, tokens=big),
        request(2, 2, 21, tokens=big, model="n"),
        request(20, 1, 3),
    )
    assert set(conversations(trace)) == {"s", "s::fa:000", "s::aux:001"}


def test_barriers_are_left_out_where_they_follow(tmp_path: Path) -> None:
    """Three agents; what the last request waits for: its own predecessor and the later of the two others, since that
    one waited for the earlier."""
    trace = load(
        tmp_path,
        request(0, 1, api=1),
        request(0.5, 2, 20, api=1),  # ends 1.5
        request(0.7, 3, 30, api=1),  # ends 1.7
        request(2, 2, 20, 21, api=1),  # waits for 0.7 (ended 1.7) and for the main's first
        request(4, 1, 11),
        request(4.5, 3, 30, 31),  # 4 still runs; what ended before 0.7 is no barrier
    )
    found = conversations(trace)
    assert starts(trace) == {"s": [0, 4], "s::fa:000": [0.5, 2], "s::fa:001": [0.7, 4.5]}
    barriers = {
        (name, n): [(e.conversation_id, e.turn) for e in turn.edges or () if e.relation == "barrier"]
        for name, c in found.items()
        for n, turn in enumerate(c.turns)
    }
    assert barriers == {
        ("s", 0): [],
        ("s", 1): [("s::fa:000", 1)],  # not fa:001's, for which that one waited
        ("s::fa:000", 0): [],
        ("s::fa:000", 1): [("s", 0), ("s::fa:001", 0)],
        ("s::fa:001", 0): [],
        ("s::fa:001", 1): [("s::fa:000", 1)],  # which waited for the main's first turn
    }


def test_the_recorded_duration_of_a_subagent_decides_who_waits(tmp_path: Path) -> None:
    """By its requests the helper was over at 3, by its own word at 7: the turn at 5 did not wait, that at 8 did."""
    trace = load(
        tmp_path,
        request(0, 1),
        subagent(1, "a", request(2, 50), duration_ms=6000),
        request(5, 1, 2),
        request(8, 1, 2, 3),
    )
    joins = [[e for e in turn.edges or () if e.relation == "join"] for turn in conversations(trace)["s"].turns]
    assert joins == [[], [], [edge("s::sa:a", 0, "completion", 5, "join")]]


def test_a_parent_waits_for_every_conversation_of_its_subagent(tmp_path: Path) -> None:
    """The helper itself has two conversations and a helper of its own, after which it sends nothing more."""
    trace = load(
        tmp_path,
        request(0, 1),
        subagent(
            1,
            "a",
            request(2, 50, 51, api=3),
            request(3, 60, 61),
            request(6, 50, 51, 52),
            subagent(7, "deep", request(8, 80)),
        ),
        request(10, 1, 2),
    )
    found = conversations(trace)
    assert starts(trace) == {"s": [0, 10], "s::sa:a": [2, 6], "s::sa:a:aux:000": [3], "s::sa:deep": [8]}
    assert found["s"].turns[1].edges == (
        sequence("s", 0, 9),
        edge("s::sa:a", 1, "completion", 3, "join"),
        edge("s::sa:a:aux:000", 0, "completion", 6, "join"),
        edge("s::sa:deep", 0, "completion", 1, "join"),
    )
    assert found["s::sa:deep"].turns[0].edges == (edge("s::sa:a", 1, "completion", 1, "spawn"),)
    assert (found["s::sa:deep"].parent, found["s::sa:deep"].after_turn, found["s::sa:deep"].depth) == ("s::sa:a", 1, 2)


def test_two_subagents_of_one_name_are_two_conversations(tmp_path: Path) -> None:
    trace = load(tmp_path, request(0, 1), subagent(1, "a", request(2, 50)), subagent(3, "a", request(4, 50)))
    assert set(conversations(trace)) == {"s", "s::sa:a", "s::sa:a~2"}


NESTED = [request(0, 1), subagent(10, "a", request(2, 50), request(5, 50, 51)), request(30, 1, 2)]


def test_times_before_their_subagent_are_relative_to_it(tmp_path: Path) -> None:
    trace = load(tmp_path, *NESTED)
    assert starts(trace) == {"s": [0, 30], "s::sa:a": [12, 15]}
    assert trace.notes["nested timestamps"] == ("relative to the subagent (subagent a of s has a request before it)")


def test_one_such_time_decides_for_the_whole_trace(tmp_path: Path) -> None:
    other = session(request(0, 1), subagent(10, "a", request(12, 50)), name="t")
    trace = load_trace(write(tmp_path / "w.jsonl", other, session(*NESTED)))
    assert starts(trace)["t::sa:a"] == [22]


def test_times_after_their_subagent_are_absolute(tmp_path: Path) -> None:
    trace = load(tmp_path, request(0, 1), subagent(10, "a", request(10 - 5e-7, 50), request(12, 50, 51)))
    assert starts(trace)["s::sa:a"] == [10, 12]  # the first is but rounded
    assert trace.notes["nested timestamps"] == "absolute (detected)"


def test_the_basis_of_nested_times_can_be_given(tmp_path: Path) -> None:
    late = write(tmp_path / "w.json", session(request(0, 1), subagent(10, "a", request(12, 50))))
    trace = weka.read(late, late.read_bytes(), nested_timestamps="relative")
    assert starts(trace)["s::sa:a"] == [22]
    assert trace.notes["nested timestamps"] == "relative to the subagent (as asked)"
    early = write(tmp_path / "v.json", session(*NESTED))
    with pytest.raises(GapscopeError, match=r"v.json, line 1: requests\[1\]: holds a request 8 s before itself"):
        weka.read(early, early.read_bytes(), nested_timestamps="absolute")


def test_subagents_inside_relative_subagents(tmp_path: Path) -> None:
    inner = subagent(5, "deep", request(1, 80))
    trace = load(tmp_path, request(0, 1), subagent(10, "a", request(2, 50), inner))
    assert starts(trace) == {"s": [0], "s::sa:a": [12], "s::sa:deep": [16]}


def test_ids_of_different_sessions_do_not_collide(tmp_path: Path) -> None:
    same = [request(0, 1, 2), request(3, 1, 2, 3)]
    trace = load_trace(write(tmp_path / "w.jsonl", session(*same, name="s"), session(*same, name="t")))
    keys = block_keys_of(trace, BLOCK)
    assert isinstance(keys, ChainedHashIds)
    one, two = (keys.walk(play.conversations[0], None, 0).keys for play in trace.plays)
    assert list(one[1][:2]) == list(one[0])
    assert not set(one[1]) & set(two[1])


def test_ids_are_told_apart_by_what_comes_before_them(tmp_path: Path) -> None:
    """Block 9 after 2 is another than block 9 after 1; huge ids are as good as small ones."""
    trace = load(tmp_path, request(0, 1, 9, 5), request(2, 2, 9, 5), request(4, 1, 9, 5, 1 << 63))
    keys = block_keys_of(trace, BLOCK)
    (first, other, third) = (list(keys.walk(c, None, 0).keys[n]) for c, n in _turns(trace))
    assert third[:3] == first
    assert not set(first) & set(other)


def _turns(trace: Trace) -> list[tuple[Conversation, int]]:
    found = [(t.start_ns or 0, c, n) for c in trace.plays[0].conversations for n, t in enumerate(c.turns)]
    return [(c, n) for _, c, n in sorted(found, key=lambda item: item[0])]


def test_prompts_with_fewer_ids_than_full_blocks_are_counted(tmp_path: Path) -> None:
    # 130 tokens are two full blocks of 64 and a rest; 127 are one.
    trace = load(tmp_path, request(0, 1, tokens=130), request(5, 1, tokens=127), request(9, 1, 2, tokens=130))
    assert trace.notes["missing hash ids"].startswith("1 requests have fewer")


def test_what_is_changed_on_the_way_is_noted(tmp_path: Path) -> None:
    trace = load(
        tmp_path,
        request(0, 1, 2, 3, tokens=65, out=0),  # two blocks
        subagent(1, "a"),
        subagent(2, "b", request(3, 5), status="failed"),
        request(9, 1, 2, model="n"),
    )
    turn = conversations(trace)["s"].turns[0]
    assert (turn.output_tokens, len(turn.hash_ids or ())) == (1, 2)
    assert trace.notes == {
        "requests without output": "1, played with one token, which a server must sample",
        "hash ids": "1 requests have more than their prompt has blocks; those are left out",
        "empty subagents": "1 of 2 subagents made no request and are left out",
        "subagent status": "1 subagents did not complete; they are waited for as if they had",
        "nested timestamps": "absolute (detected)",
        "models": "m, n; all of them are sent to the one deployment",
    }


def test_a_file_over_several_lines_and_a_folder(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_bytes(orjson.dumps(session(request(0, 1), name="b"), option=orjson.OPT_INDENT_2))
    assert [p.source_trace_id for p in load_trace(tmp_path / "b.json").plays] == ["b"]
    write(tmp_path / "a.json", session(request(0, 1), name="a"))
    write(tmp_path / "c.json", session(request(0, 1), name="a"))
    assert [p.source_trace_id for p in load_trace(tmp_path).plays] == ["a", "b", "a~2"]


def test_the_compact_form_is_the_equal_trace(tmp_path: Path) -> None:
    trace = load(tmp_path, request(0, 1), request(5, 1, 2), request(7, 1, 3))
    assert any(turn.edges for play in trace.plays for c in play.conversations for turn in c.turns)
    write_compact(trace, tmp_path / "w.parquet")
    assert load_trace(tmp_path / "w.parquet") == trace


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ([1], "line 2: expected a JSON object"),
        (session(request(0, 1), hash_id_scope="global"), "line 2: hash_id_scope is 'global', expected 'local'"),
        (session(request(0, 1), block_size=16), "line 2: block_size is 16 but 64 in earlier sessions"),
        (session(), "line 2: no request of its own"),
        ({"id": "x", "requests": []}, "line 2: the field block_size is missing"),
        (session({"t": 0}), r"line 2: requests\[0\]: the field in is missing"),
        (session(request(-1, 1)), r"line 2: requests\[0\]: t is -1"),
        (session({**request(0, 1), "in": 0}), r"requests\[0\]: in is 0, expected a whole number of at least 1"),
        (session(request(0, 1, api=-2)), r"requests\[0\]: api_time is -2"),
        (session({**request(0), "hash_ids": [1, "2"]}), r"requests\[0\]: hash_ids holds something"),
        (b'{"id": "x", "block_size": 64, "req', "line 2: not valid JSON"),
        (session({**request(0), "type": "x"}), r"requests\[0\]: type is 'x', expected 'n', 's' or 'subagent'"),
        (session(request(0, 1), "x"), r"requests\[1\]: expected a JSON object"),
        (session(request(0, 1), subagent(1, "a", {"t": 2})), r"requests\[1\].requests\[0\]: the field in is missing"),
        (
            session(subagent(0, "a", request(1, 1)), request(2, 1)),
            r"requests\[0\]: a subagent before the first request",
        ),
        (
            session(request(0, 1), subagent(1, "a", subagent(2, "b", request(3, 1)))),
            r"requests\[1\]: a subagent with subagents but no request that launched them",
        ),
    ],
)
def test_bad_sessions_are_named(tmp_path: Path, bad: Any, said: str) -> None:
    with pytest.raises(GapscopeError, match=said):
        load_trace(write(tmp_path / "w.jsonl", session(request(0, 1), name="good"), bad))


def recorded(play: Play) -> dict[tuple[str, int], Turn]:
    return {(c.conversation_id, n): turn for c in play.conversations for n, turn in enumerate(c.turns)}


def made_up(random: Random, depth: int = 0, begin: float = 0.0, shared: int = 0) -> list[dict[str, Any]]:
    """A scope in which prompts grow, fork and are cut, some overlapping; whole milliseconds.

    All prompts have the first ``shared`` blocks in common, so that with 1 it can be told whose each is.
    """
    prompts: list[list[int]] = [[0] if shared else [random.randrange(3)]]
    rows: list[dict[str, Any]] = []
    t = begin
    for number in range(random.randrange(1, 12)):
        prompt = list(random.choice(prompts))
        if random.random() < 0.3:
            prompt = prompt[: random.randrange(shared, len(prompt) + 1)]
        prompt += [random.randrange(1000, 1010) for _ in range(random.randrange(3))]
        api = random.choice([None, 0.5, 2.0, 7.5])
        rows.append(request(t, *prompt, api=api, model=random.choice("mmmmn")))
        prompts.append(prompt or [0])
        if depth < 3 and number and random.random() < 0.3:
            inner = made_up(random, depth + 1, t, shared)
            status = random.choice(["completed", "async_launched"])
            rows.append(subagent(t, f"a{number}", *inner, status=status))
        t = round(t + random.choice([0.0, 0.25, 1.0, 3.125, 30.0]), 3)
    return rows


@pytest.mark.parametrize("seed", range(40))
def test_at_recorded_speed_a_replay_sends_what_was_recorded_when_it_was(tmp_path: Path, seed: int) -> None:
    """Every request is one turn; and if responses take as long as recorded, each turn is due when it was sent.

    Except for requests without ids, and a first one that no other begins like, of which only their place tells whose
    they are: what comes after one in its conversation waits for its end, even if it did not in the recording.
    """
    rows = made_up(Random(seed))
    (play,) = load(tmp_path, *rows).plays
    turns = recorded(play)
    assert len(turns) == _count(rows)
    for place, turn in turns.items():
        assert turn.start_ns is not None
        assert turn.edges is not None
        due = 0
        for e in turn.edges:
            source = turns[e.conversation_id, e.turn]
            begin = source.start_ns or 0
            if e.trigger == "completion":
                begin += source.api_ns or 0
            due = max(due, begin + e.delay_ns)
        if due > turn.start_ns:
            before = turns[place[0], place[1] - 1]
            assert (before.start_ns or 0) + (before.api_ns or 0) == due
            assert place[1] == 1 or not turn.hash_ids or not before.hash_ids
        else:
            assert due == turn.start_ns


def _count(rows: list[dict[str, Any]]) -> int:
    return sum(_count(row["requests"]) if row.get("type") == "subagent" else 1 for row in rows)


@pytest.mark.skipif(not (PUBLIC / "weka").is_dir(), reason="the public sessions are not here")
def test_the_public_sessions() -> None:
    """Two agents without subagents, each one conversation: their prompts grow, one of them once edited."""
    trace = load_trace(PUBLIC / "weka")
    assert {p.source_trace_id: [len(c.turns) for c in p.conversations] for p in trace.plays} == {
        "trace_0217": [11],
        "trace_0506": [4],
    }
    # The files' own totals of input tokens.
    assert [sum(t.prompt_tokens or 0 for t in p.conversations[0].turns) for p in trace.plays] == [2_804_125, 691_279]
    first = trace.plays[0].conversations[0].turns
    assert first[1].edges == (sequence("trace_0217", 0, 17 - 6.36),)
    assert [t.output_tokens for t in first][-2:] == [473, 1]
    assert trace.notes == {"requests without output": "1, played with one token, which a server must sample"}


@pytest.mark.parametrize("seed", range(12))
def test_the_client_sends_recorded_sessions_as_recorded(tmp_path: Path, seed: int) -> None:
    """Served as long as recorded, one at a time, every request of a session is scheduled when it was sent."""
    rows = made_up(Random(1000 + seed), shared=1)
    trace = load(tmp_path, *rows)
    turns = {f"{name}/{n}": turn for (name, n), turn in recorded(trace.plays[0]).items()}
    sent, client = settle(trace, {"block_size": BLOCK}, lambda name: (turns[name].api_ns or 0) / 1e6)
    assert len(sent) == len(turns) == _count(rows)
    assert client.never_issued == 0
    scheduled = {request.name: request.scheduled for request in sent}
    assert scheduled == {name: (turn.start_ns or 0) / 1e6 for name, turn in turns.items()}


@pytest.mark.skipif(not (PUBLIC / "weka").is_dir(), reason="the public sessions are not here")
def test_the_public_sessions_replay() -> None:
    """One lane per session and a server that takes no time for what is cached: 15 requests in 2 sessions.

    Of each prompt the leading blocks of the one before are reused, as far as they are equal: all that was named of it
    but, where the context was edited, its last block.
    """
    trace = load_trace(PUBLIC / "weka")
    values = knobs.resolve({"timing": "fixed", "lanes": 2, "block_size": BLOCK, "kv_blocks": 20_000})
    result = simulate(trace, values, build_timing(values))
    sent = result.client.sent
    assert len(sent.turn) == 15
    assert all(sent.ok)
    cached = {
        (c.conversation.conversation_id, turn): int(blocks) // BLOCK
        for c, turn, blocks in zip(sent.conversation, sent.turn, result.record.requests["cached_tokens"], strict=True)
    }
    named = [3917, 3930, 3937, 3945, 3953, 3966, 3997, 4011, 4036, 4049]  # full blocks of each prompt but the last
    assert [cached["trace_0217", n] for n in range(11)] == [0, *named]
    assert [cached["trace_0506", n] for n in range(4)] == [0, 2578, 2583, 2817]
