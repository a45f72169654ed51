"""The agentic trace: both forms read alike, and what is wrong with a trace is said with its line."""

from __future__ import annotations

import copy
import hashlib
import json
from array import array
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recording_folder import PROMPT_A, SYSTEM, lines, trace_rows

from engine.errors import GapscopeError
from engine.traces import agentic, load_trace
from engine.traces.compact import is_compact, pack, unpack
from engine.traces.content import block_keys, content_of, token_ids
from engine.traces.tree import Conversation, Edge, Play, Segment, Trace, Turn


def written(tmp_path: Path, rows: list[dict[str, Any]]) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(lines(rows))
    return path


def refusal(tmp_path: Path, rows: list[dict[str, Any]]) -> str:
    with pytest.raises(GapscopeError) as error:
        agentic.load(written(tmp_path, rows))
    return str(error.value)


def test_a_trace_becomes_plays(tmp_path: Path) -> None:
    path = written(tmp_path, trace_rows())
    trace = agentic.load(path)
    assert (trace.name, trace.format, trace.notes) == ("trace", "agentic-trace/1", {"seed": "7"})
    assert trace.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    (play,) = trace.plays
    root, child = play.conversations
    assert (play.source_trace_id, root.conversation_id, root.depth) == ("r", "r", 0)
    assert (child.parent, child.after_turn, child.mode, child.depth) == ("r", 0, "fork", 1)
    system = hashlib.blake2b(b"".join(i.to_bytes(4, "little") for i in SYSTEM), digest_size=8).hexdigest()
    assert [(s.tokens, s.content == system) for s in root.turns[0].new_input] == [(6, True), (3, False)]
    assert [s.tokens for s in child.turns[0].new_input] == [1]  # its context is the parent's
    assert (root.turns[0].spawn, root.turns[0].think_ns, root.turns[0].output_tokens) == (("r.c",), 250_000_000, 2)


def test_a_fresh_child_starts_from_its_system_prompt(tmp_path: Path) -> None:
    rows = trace_rows()
    rows[3] |= {"system": "sys", "parent": {"session_id": "r", "after_turn": 0, "mode": "fresh"}}
    child = agentic.load(written(tmp_path, rows)).plays[0].conversations[1]
    assert [s.tokens for s in child.turns[0].new_input] == [6, 1]


def test_token_ids_stay_available_by_content(tmp_path: Path) -> None:
    trace, ids = agentic.read_with_ids(written(tmp_path, trace_rows()))
    first = trace.plays[0].conversations[0].turns[0]
    assert [i for s in first.new_input for i in ids[s.content].tolist()] == PROMPT_A


def test_the_compact_form_is_the_equal_trace(tmp_path: Path) -> None:
    trace = agentic.load(written(tmp_path, trace_rows()))
    compact = tmp_path / "store" / "traces" / agentic.compact_name(trace)
    agentic.write_compact(trace, compact)
    assert compact.name == f"trace-{trace.digest[:12]}.parquet"
    assert agentic.load(compact) == trace == load_trace(compact)
    assert list(compact.parent.iterdir()) == [compact]
    with pytest.raises(GapscopeError, match="without token ids"):
        agentic.read_with_ids(compact)


_segments = st.lists(st.builds(Segment, st.text(max_size=4), st.integers(1, 9)), max_size=3).map(tuple)
_ids = st.lists(st.integers(0, 3) | st.sampled_from([2**62, -(2**63)]), max_size=4)
_edges = st.builds(
    Edge,
    st.text(max_size=3),
    st.integers(0, 9),
    st.sampled_from(["dispatch", "completion"]),
    st.integers(0, 10**15),
    st.sampled_from(["sequence", "spawn", "join", "barrier"]),
)
_turns = st.lists(
    st.builds(
        Turn,
        output_tokens=st.integers(1, 99),
        think_ns=st.integers(0, 10**12),
        new_input=_segments,
        spawn=st.lists(st.text(max_size=3), max_size=2).map(tuple),
        prompt_tokens=st.none() | st.integers(0, 99),
        hash_ids=st.none() | _ids.map(tuple) | _ids.map(lambda ids: array("q", ids)),
        edges=st.none() | st.lists(_edges, max_size=3).map(tuple),
        not_before_ns=st.none() | st.integers(0, 10**15),
        start_ns=st.none() | st.integers(0, 10**15),
        api_ns=st.none() | st.integers(0, 10**15),
    ),
    min_size=1,
    max_size=3,
)


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_any_trace_survives_its_compact_form(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    plays = []
    for number in range(data.draw(st.integers(1, 3))):
        names = data.draw(st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=3, unique=True))
        talks = [
            Conversation(
                name,
                data.draw(_turns),
                parent=data.draw(st.none() | st.text(max_size=3) | st.sampled_from(names)),
                after_turn=data.draw(st.none() | st.integers(0, 3)),
                mode=data.draw(st.sampled_from(["fork", "fresh"])),
                depth=data.draw(st.integers(0, 3)),
            )
            for name in names
        ]
        plays.append(Play(f"play {number}", talks, data.draw(st.none() | st.integers(0, 10**15))))
    read_as = data.draw(st.sampled_from([{}, {"nested_timestamps": "relative"}]))
    trace = Trace("t", "f/1", "d" * 64, plays, data.draw(st.none() | st.integers(1, 512)), {"seed": "1"}, read_as)
    path = tmp_path_factory.mktemp("compact") / "t.parquet"
    agentic.write_compact(trace, path)
    assert agentic.load(path) == trace


def test_block_keys_name_content_and_what_comes_before_it() -> None:
    keys = block_keys(token_ids(range(10)), 4)
    assert len(keys) == 2  # the third block is not full
    assert keys == block_keys(token_ids(range(8)), 4)
    other = block_keys(token_ids([9, 1, 2, 3, 4, 5, 6, 7]), 4)
    assert other[1] != keys[1]  # the same tokens after something else
    assert content_of(token_ids([1, 2])) != content_of(token_ids([258]))


# -- traces that do not hold together --------------------------------------------------------------------------------


def test_a_cycle_of_sessions(tmp_path: Path) -> None:
    rows = trace_rows()
    first, second = copy.deepcopy(rows[3]), copy.deepcopy(rows[3])
    first |= {"session_id": "x", "parent": {"session_id": "y", "after_turn": 0, "mode": "fork"}}
    second |= {"session_id": "y", "parent": {"session_id": "x", "after_turn": 0, "mode": "fork"}}
    first["turns"][0]["spawn"], second["turns"][0]["spawn"] = ["y"], ["x"]
    message = refusal(tmp_path, [*rows, first, second])
    assert "line 5" in message
    assert "cycle (x -> y -> x)" in message


def test_a_session_that_is_its_own_parent(tmp_path: Path) -> None:
    rows = trace_rows()
    row = copy.deepcopy(rows[3])
    row |= {"session_id": "x", "parent": {"session_id": "x", "after_turn": 0, "mode": "fork"}}
    row["turns"][0]["spawn"] = ["x"]
    assert "cycle (x -> x)" in refusal(tmp_path, [*rows, row])


def test_missing_parents_children_and_system_prompts(tmp_path: Path) -> None:
    rows = trace_rows()
    assert "line 3: turn 0 spawns the session 'r.c', which is not defined" in refusal(tmp_path, rows[:3])
    orphan = copy.deepcopy(rows[3]) | {"session_id": "o"}
    orphan["parent"] = {"session_id": "gone", "after_turn": 0, "mode": "fork"}
    assert "line 5: the parent session 'gone' is not defined" in refusal(tmp_path, [*rows, orphan])
    idle = copy.deepcopy(rows[3]) | {"session_id": "o"}
    assert "line 5: the session 'o' is never started" in refusal(tmp_path, [*rows, idle])
    assert "the system prompt 'sys' is not defined" in refusal(tmp_path, [rows[0], *rows[2:]])
    rows[3]["parent"]["after_turn"] = 1
    assert "whose parent (line 4) is turn 1 of 'r'" in refusal(tmp_path, rows)


def test_duplicates(tmp_path: Path) -> None:
    rows = trace_rows()
    assert "line 5: the session 'r' is defined twice, first in line 3" in refusal(tmp_path, [*rows, rows[2]])
    assert "line 3: the system prompt 'sys' is defined twice" in refusal(tmp_path, [*rows[:2], *rows[1:]])


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("output_tokens", "3", 'turn 1: output_tokens is "3", expected a whole number of at least 1'),
        ("output_tokens", 0, "turn 1: output_tokens is 0, expected a whole number of at least 1"),
        ("think_s", -1, "turn 1: think_s is -1, expected a number from 0 to 1e9"),
        ("input_ids", [1.5, 2], "holds something that is not a token id"),
        ("input_ids", [True, False], "holds something that is not a token id"),
        ("input_ids", [-1, 2], "holds something that is not a token id"),
        ("input_ids", [1], "2 tokens are announced but 1 token ids given"),
        ("turn", 2, "turn 2 stands where turn 1 is expected"),
        ("spawn", [1], "turn 1: spawn is [1]"),
    ],
)
def test_wrong_types(tmp_path: Path, field: str, value: Any, expected: str) -> None:
    rows = trace_rows()
    rows[2]["turns"][1][field] = value
    message = refusal(tmp_path, rows)
    assert "trace.jsonl line 3" in message
    assert expected in message


def test_a_session_without_turns(tmp_path: Path) -> None:
    rows = trace_rows()
    rows[3]["turns"] = []
    assert "line 4: turns is [], expected a list of at least one turn" in refusal(tmp_path, rows)


def test_cut_off_and_foreign_files(tmp_path: Path) -> None:
    path = written(tmp_path, trace_rows())
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(GapscopeError, match=r"trace\.jsonl line 4: not a JSON object"):
        agentic.load(path)
    assert "is empty" in refusal(tmp_path, [])
    assert "line 1: expected the meta row" in refusal(tmp_path, trace_rows()[1:])
    assert "schema is 'other/1'" in refusal(tmp_path, [{"kind": "meta", "schema": "other/1"}])
    assert "line 1: the field kind is missing" in refusal(tmp_path, [{"a": 1}])
    with pytest.raises(GapscopeError, match="is missing"):
        agentic.load(tmp_path / "no.jsonl")


def test_the_form_is_told_by_content(tmp_path: Path) -> None:
    path = written(tmp_path, trace_rows())
    assert not is_compact(path)
    assert not is_compact(tmp_path / "no.jsonl")
    renamed = path.rename(tmp_path / "trace.parquet")
    assert len(agentic.load(renamed).plays) == 1


def test_a_damaged_compact_trace(tmp_path: Path) -> None:
    trace = agentic.load(written(tmp_path, trace_rows()))
    path = tmp_path / "t.parquet"
    agentic.write_compact(trace, path)
    data = bytearray(path.read_bytes())
    data[4:400] = bytes(396)
    path.write_bytes(data)
    with pytest.raises(GapscopeError, match=r"t\.parquet is damaged"):
        agentic.load(path)
    path.write_bytes(b"PAR1")
    with pytest.raises(GapscopeError, match="not a JSON object"):
        agentic.load(path)


def test_an_unwritable_place_leaves_nothing(tmp_path: Path) -> None:
    trace = agentic.load(written(tmp_path, trace_rows()))
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(GapscopeError, match="Cannot write the compact trace"):
        agentic.write_compact(trace, tmp_path / "taken" / "t.parquet")


def _full_trace() -> Trace:
    """Two conversations in which no column is empty."""
    edge = Edge("r", 0, "dispatch", 5, "spawn")
    first = Turn(3, 0, (Segment("a", 4),), ("c",), 32, array("q", [1, 2]), (), 0, 0, 9)
    later = Turn(
        4, 7, (Segment("b", 2),), (), 48, array("q", [1, 2, 3]), (Edge("r", 0, "completion", 7, "sequence"),), 1, 2
    )
    child = Turn(5, 0, (), (), 32, array("q", [1, 9]), (edge,), 3, 4, 5)
    talks = [Conversation("r", [first, later]), Conversation("c", [child], "r", 0, "fork", 1)]
    return Trace("t", "f", "d" * 64, [Play("p", talks, 6)], 16, {"note": "n"})


def test_what_the_columns_of_a_compact_trace_hold(tmp_path: Path) -> None:
    agentic.write_compact(_full_trace(), tmp_path / "t.parquet")
    rows = pq.read_table(tmp_path / "t.parquet").to_pylist()
    assert [row["kept_ids"] for row in rows] == [0, 2, 1]  # the child begins with the first id of its parent's turn
    assert [row["new_ids"] for row in rows] == [[1, 2], [3], [9]]
    assert [row["conversation"] for row in rows] == [0, 0, 1]
    assert [row["edge_delay_ns"] for row in rows] == [[], [7], [5]]
    assert [row["api_ns"] for row in rows] == [9, None, 5]


@pytest.mark.parametrize("column", pq.read_table(pa.BufferReader(pack(_full_trace()))).column_names)
def test_an_altered_compact_trace_is_not_read(tmp_path: Path, column: str) -> None:
    path = tmp_path / "t.parquet"
    agentic.write_compact(_full_trace(), path)
    table = pq.read_table(path)
    at, values = table.schema.get_field_index(column), table[column].to_pylist()
    others: list[Any] = [None, 0, 77, "x", [], [1], ["x"]]
    for other in others:
        changed = [other, *values[1:]]
        try:
            altered = table.set_column(at, column, pa.array(changed, table.schema.field(column).type))
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            continue
        if changed == values:
            continue
        pq.write_table(altered.replace_schema_metadata(table.schema.metadata), path)
        with pytest.raises(GapscopeError, match=r"t\.parquet was altered"):
            agentic.load(path)
    head = json.loads(table.schema.metadata[b"gapscope.trace"])
    renamed = json.dumps({**head, "digest": "e" * 64})
    pq.write_table(table.replace_schema_metadata({b"gapscope.trace": renamed}), path)
    with pytest.raises(GapscopeError, match=r"t\.parquet was altered"):
        agentic.load(path)


def test_damage_anywhere_is_found() -> None:
    whole = bytes(pack(_full_trace()))
    for at in range(0, len(whole), 11):
        try:
            found, _ = unpack(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :], Path("t"))
        except GapscopeError:
            continue
        assert found == _full_trace(), at  # a byte without meaning: padding, say, or the writer's name


def test_compact_traces_of_older_stores_are_read(tmp_path: Path) -> None:
    row = {
        "play": 0,
        "source_trace_id": "p",
        "arrival_ns": None,
        "conversation_id": "r",
        "parent": None,
        "after_turn": None,
        "mode": "fresh",
        "depth": 0,
        "output_tokens": 3,
        "think_ns": 0,
        "new_content": ["a"],
        "new_tokens": [4],
        "spawn": [],
        "prompt_tokens": None,
        "hash_ids": None,
    }
    rows = [row, {**row, "output_tokens": 5, "think_ns": 8}]
    head = {
        "schema": "gapscope-trace/1",
        "name": "n",
        "format": "f",
        "digest": "d",
        "hash_block_tokens": None,
        "notes": {},
    }
    head["content"] = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
    texts, ints = pa.list_(pa.string()), pa.list_(pa.int64())
    kinds = {"new_content": texts, "new_tokens": ints, "spawn": texts, "hash_ids": ints}
    names = ("source_trace_id", "conversation_id", "parent", "mode")
    schema = pa.schema([(n, kinds.get(n) or (pa.string() if n in names else pa.int64())) for n in row])
    table = pa.Table.from_pylist(rows, schema)
    path = tmp_path / "old.parquet"
    pq.write_table(table.replace_schema_metadata({"gapscope.trace": json.dumps(head)}), path)
    turns = [Turn(3, 0, (Segment("a", 4),)), Turn(5, 8, (Segment("a", 4),))]
    assert load_trace(path) == Trace("n", "f", "d", [Play("p", [Conversation("r", turns)])])
    pq.write_table(table.slice(1).replace_schema_metadata({"gapscope.trace": json.dumps(head)}), path)
    with pytest.raises(GapscopeError, match=r"old\.parquet was altered"):
        load_trace(path)


def test_a_think_time_that_no_clock_holds(tmp_path: Path) -> None:
    rows = trace_rows()
    rows[2]["turns"][0]["think_s"] = 1e308
    with pytest.raises(GapscopeError, match=r"line 3: turn 0: think_s is 1e\+308, expected a number from 0 to 1e9"):
        agentic.load(written(tmp_path, rows))
