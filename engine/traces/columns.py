"""The plays of a trace as columns, one row per turn, and back.

What holds for a conversation or a play stands in the rows of all its turns; ``play`` and ``conversation`` number them
in the order of the trace. A prompt given by hash ids begins with the first ``kept_ids`` of the prompt before, then come
``new_ids``. The prompt before is that of the previous turn; for a first turn that of the turn which spawned its
conversation, where that stands further up.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from engine.arrays import filled, flags, lists, numbers, offsets, python_values, texts
from engine.collector import collector_paused
from engine.traces.prompt_ids import PromptIds, shared
from engine.traces.tree import Conversation, Edge, Play, Segment, Turn

Ints = npt.NDArray[np.int64]
_INTS, _TEXTS = pa.list_(pa.int64()), pa.list_(pa.string())
COLUMNS = pa.schema(
    [
        ("play", pa.int64()),
        ("source_trace_id", pa.string()),
        ("arrival_ns", pa.int64()),
        ("conversation", pa.int64()),
        ("conversation_id", pa.string()),
        ("parent", pa.string()),
        ("after_turn", pa.int64()),
        ("mode", pa.string()),
        ("depth", pa.int64()),
        ("output_tokens", pa.int64()),
        ("think_ns", pa.int64()),
        ("prompt_tokens", pa.int64()),
        ("not_before_ns", pa.int64()),
        ("start_ns", pa.int64()),
        ("api_ns", pa.int64()),
        ("new_content", _TEXTS),
        ("new_tokens", _INTS),
        ("spawn", _TEXTS),
        ("edge_conversation", _TEXTS),
        ("edge_turn", _INTS),
        ("edge_trigger", _TEXTS),
        ("edge_delay_ns", _INTS),
        ("edge_relation", _TEXTS),
        ("kept_ids", pa.int64()),
        ("new_ids", _INTS),
    ]
)
EDGE_FIELDS = {
    "edge_conversation": "conversation_id",
    "edge_turn": "turn",
    "edge_trigger": "trigger",
    "edge_delay_ns": "delay_ns",
    "edge_relation": "relation",
}
"""Columns of edges, in the order of their fields."""
_TEXT_FIELDS = {"source_trace_id", "conversation_id", "parent", "mode", "content", "trigger", "relation"}


def table_of(plays: Sequence[Play]) -> pa.Table:
    """The turns of plays whose conversations have at least one each."""
    talks = [talk for play in plays for talk in play.conversations]
    turns = [turn for talk in talks for turn in talk.turns]
    in_play = np.repeat(np.arange(len(plays)), [sum(len(talk.turns) for talk in play.conversations) for play in plays])
    in_talk = np.repeat(np.arange(len(talks)), [len(talk.turns) for talk in talks])
    kept, new = _ids_of(plays)
    segments, edges = [turn.new_input for turn in turns], [turn.edges for turn in turns]
    names = [name for turn in turns for name in turn.spawn]
    values: dict[str, pa.Array] = {
        "play": numbers(in_play),
        "conversation": numbers(in_talk),
        "spawn": _listed([turn.spawn for turn in turns], texts(names)),
        "kept_ids": _whole(kept),
        "new_ids": _listed(new, numbers(np.frombuffer(b"".join(ids for ids in new if ids is not None), np.int64))),
    }
    for name in ("new_content", "new_tokens"):
        values[name] = _listed(segments, _column([s for row in segments for s in row], name.removeprefix("new_")))
    flat = [edge for row in edges for edge in row or ()]
    for name, field in EDGE_FIELDS.items():
        values[name] = _listed(edges, _column(flat, field))
    for name in ("source_trace_id", "arrival_ns"):
        values[name] = _column(plays, name).take(numbers(in_play))
    for name in ("conversation_id", "parent", "after_turn", "mode", "depth"):
        values[name] = _column(talks, name).take(numbers(in_talk))
    for name in ("output_tokens", "think_ns", "prompt_tokens", "not_before_ns", "start_ns", "api_ns"):
        values[name] = _column(turns, name)
    return pa.Table.from_arrays([values[name] for name in COLUMNS.names], schema=COLUMNS)


@collector_paused()
def plays_of(table: pa.Table) -> list[Play]:
    """The plays that :func:`table_of` was given.

    Raises:
        ValueError: prompts that keep more than there is.
    """
    columns = {name: table[name].combine_chunks() for name in COLUMNS.names}
    segments = list(map(Segment, *(python_values(_items(columns[name])) for name in ("new_content", "new_tokens"))))
    edges = list(map(Edge, *(python_values(_items(columns[name])) for name in EDGE_FIELDS)))
    turns = list(
        map(
            Turn,
            python_values(columns["output_tokens"]),
            python_values(columns["think_ns"]),
            _tuples(columns["new_tokens"], segments),
            _tuples(columns["spawn"], python_values(_items(columns["spawn"]))),
            python_values(columns["prompt_tokens"]),
            [None] * table.num_rows,
            _tuples(columns["edge_turn"], edges),
            *(python_values(columns[name]) for name in ("not_before_ns", "start_ns", "api_ns")),
        )
    )
    begins = _begins(columns["conversation"])
    names, parents, after, modes, depths = (
        python_values(columns[name].take(numbers(begins)))
        for name in ("conversation_id", "parent", "after_turn", "mode", "depth")
    )
    spans = pairwise([*begins.tolist(), len(turns)])
    talks = list(map(Conversation, names, [turns[a:b] for a, b in spans], parents, after, modes, depths))
    first = _begins(columns["play"])
    sources, arrivals = (python_values(columns[n].take(numbers(first))) for n in ("source_trace_id", "arrival_ns"))
    spans = pairwise([*np.searchsorted(begins, first).tolist(), len(talks)])
    plays = list(map(Play, sources, [talks[a:b] for a, b in spans], arrivals))
    if columns["kept_ids"].null_count < len(turns):
        _give_ids(plays, python_values(columns["kept_ids"]), columns["new_ids"])
    return plays


def content_of(table: pa.Table, head: bytes) -> str:
    """The SHA-256 over ``head`` and the values of all columns, however those are encoded, as 64 hex digits."""
    digest = hashlib.sha256(head)

    def add(column: pa.Array) -> None:
        digest.update(column.null_count.to_bytes(8, "little"))
        if column.null_count:
            digest.update(np.packbits(flags(column)).tobytes())
        if pa.types.is_int64(column.type):
            digest.update(filled(column).astype("<i8", copy=False).tobytes())
            return
        ends = offsets(column).astype("<i8")
        digest.update(np.diff(ends).tobytes())
        if pa.types.is_list(column.type):
            add(_items(column))
        elif ends[-1] > ends[0]:
            digest.update(column.buffers()[2][ends[0] : ends[-1]])

    for name in COLUMNS.names:
        digest.update(name.encode())
        add(table[name].combine_chunks())
    return digest.hexdigest()


# -- hash ids ----------------------------------------------------------------------------------------------------------


def _ids_of(plays: Sequence[Play]) -> tuple[list[int | None], list[array[int] | None]]:
    """What the prompt of each turn keeps of the prompt before, and what it adds; None where it names no blocks."""
    kept: list[int | None] = []
    new: list[array[int] | None] = []
    for play in plays:
        above: dict[str, list[Turn]] = {}
        for talk in play.conversations:
            before = _spawning(talk, above)
            for turn in talk.turns:
                own = None if turn.hash_ids is None else shared(turn.hash_ids)
                same = 0 if own is None or before is None else own.common(before)
                kept.append(None if own is None else same)
                new.append(None if own is None else own[same:])
                before = own
            above[talk.conversation_id] = talk.turns
    return kept, new


def _give_ids(plays: Sequence[Play], kept: Sequence[int | None], new: pa.ListArray) -> None:
    data = filled(_items(new)).tobytes()
    ends = (8 * (offsets(new)[1:].astype(np.int64) - offsets(new)[0])).tolist()
    row = at = 0
    for play in plays:
        above: dict[str, list[Turn]] = {}
        for talk in play.conversations:
            before = _spawning(talk, above) if talk.parent is not None else None
            for turn in talk.turns:
                same, end, ids = kept[row], ends[row], None
                if same is not None:
                    if not 0 <= same <= (0 if before is None else len(before)):
                        raise ValueError(f"turn {row} keeps {same} ids of a prompt that has fewer")
                    more = data[at:end]
                    ids = PromptIds(array("q", more)) if before is None else before.grown(same, more)
                turn.hash_ids = before = ids
                at, row = end, row + 1
            above[talk.conversation_id] = talk.turns


def _spawning(talk: Conversation, above: Mapping[str, Sequence[Turn]]) -> PromptIds | None:
    """The hash ids of the turn that spawned a conversation, if that is in one of those ``above``."""
    turns, after = above.get(talk.parent or "", ()), talk.after_turn
    ids = turns[after].hash_ids if after is not None and 0 <= after < len(turns) else None
    return None if ids is None else shared(ids)


# -- columns -----------------------------------------------------------------------------------------------------------


def _column(things: Sequence[Any], field: str) -> pa.Array:
    values = [getattr(thing, field) for thing in things]
    return texts(values) if field in _TEXT_FIELDS else _whole(values)


def _whole(values: Sequence[int | None]) -> pa.Array:
    if None not in values:
        return numbers(np.array(values, np.int64))
    there = np.array([value is not None for value in values], np.bool_)
    return numbers(np.array([value or 0 for value in values], np.int64), there)


def _listed(rows: Sequence[Sequence[Any] | None], items: pa.Array) -> pa.ListArray:
    """``items`` cut into the rows; None is NULL."""
    ends = np.cumsum([0, *(0 if row is None else len(row) for row in rows)])
    return lists(ends, items, np.array([row is not None for row in rows], np.bool_) if None in rows else None)


def _items(column: pa.ListArray) -> pa.Array:
    ends = offsets(column)
    return column.values.slice(int(ends[0]), int(ends[-1] - ends[0]))


def _begins(column: pa.Array) -> Ints:
    """The rows at which a number first comes."""
    values = filled(column)
    return np.flatnonzero(np.diff(values, prepend=values[:1] - 1))


def _tuples(column: pa.ListArray, things: list[Any]) -> list[tuple[Any, ...] | None]:
    """``things`` cut into the lists of a column."""
    if not things and not column.null_count:
        return [()] * len(column)
    ends = offsets(column)
    cut = [tuple(things[a:b]) for a, b in pairwise((ends - ends[0]).tolist())]
    if not column.null_count:
        return list(cut)
    return [one if there else None for one, there in zip(cut, flags(column).tolist(), strict=True)]
