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
import pyarrow.compute as pc

from engine.collector import collector_paused
from engine.traces.prompt_ids import PromptIds
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


def table_of(plays: Sequence[Play]) -> pa.Table:
    """The turns of plays whose conversations have at least one each."""
    talks = [talk for play in plays for talk in play.conversations]
    turns = [turn for talk in talks for turn in talk.turns]
    in_play = np.repeat(np.arange(len(plays)), [sum(len(talk.turns) for talk in play.conversations) for play in plays])
    in_talk = np.repeat(np.arange(len(talks)), [len(talk.turns) for talk in talks])
    kept, new = _ids_of(plays)
    segments, edges = [turn.new_input for turn in turns], [turn.edges for turn in turns]
    values: dict[str, pa.Array] = {
        "play": pa.array(in_play),
        "conversation": pa.array(in_talk),
        "new_content": _lists(segments, "content", pa.string()),
        "new_tokens": _lists(segments, "tokens", pa.int64()),
        "spawn": _listed([turn.spawn for turn in turns], pa.array([n for t in turns for n in t.spawn], pa.string())),
        "edge_conversation": _lists(edges, "conversation_id", pa.string()),
        "edge_turn": _lists(edges, "turn", pa.int64()),
        "edge_trigger": _lists(edges, "trigger", pa.string()),
        "edge_delay_ns": _lists(edges, "delay_ns", pa.int64()),
        "edge_relation": _lists(edges, "relation", pa.string()),
        "kept_ids": pa.array(kept, pa.int64()),
        "new_ids": _listed(new, pa.array(np.frombuffer(b"".join(ids for ids in new if ids is not None), np.int64))),
    }
    for name in ("source_trace_id", "arrival_ns"):
        values[name] = _column(plays, name).take(pa.array(in_play))
    for name in ("conversation_id", "parent", "after_turn", "mode", "depth"):
        values[name] = _column(talks, name).take(pa.array(in_talk))
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
    segments = list(map(Segment, _flat(columns["new_content"]), _flat(columns["new_tokens"])))
    edges = list(map(Edge, *(_flat(columns[name]) for name in COLUMNS.names if name.startswith("edge_"))))
    turns = list(
        map(
            Turn,
            _python(columns["output_tokens"]),
            _python(columns["think_ns"]),
            _tuples(columns["new_tokens"], segments),
            _tuples(columns["spawn"], _flat(columns["spawn"])),
            _python(columns["prompt_tokens"]),
            [None] * table.num_rows,
            _tuples(columns["edge_turn"], edges),
            *(_python(columns[name]) for name in ("not_before_ns", "start_ns", "api_ns")),
        )
    )
    begins = _begins(columns["conversation"])
    names, parents, after, modes, depths = (
        _python(columns[name].take(pa.array(begins)))
        for name in ("conversation_id", "parent", "after_turn", "mode", "depth")
    )
    spans = pairwise([*begins.tolist(), len(turns)])
    talks = list(map(Conversation, names, [turns[a:b] for a, b in spans], parents, after, modes, depths))
    first = _begins(columns["play"])
    sources, arrivals = (_python(columns[name].take(pa.array(first))) for name in ("source_trace_id", "arrival_ns"))
    spans = pairwise([*np.searchsorted(begins, first).tolist(), len(talks)])
    plays = list(map(Play, sources, [talks[a:b] for a, b in spans], arrivals))
    if columns["kept_ids"].null_count < len(turns):
        _give_ids(plays, _python(columns["kept_ids"]), columns["new_ids"])
    return plays


def content_of(table: pa.Table, head: bytes) -> str:
    """The SHA-256 over ``head`` and the values of all columns, however those are encoded, as 64 hex digits."""
    digest = hashlib.sha256(head)
    for name in COLUMNS.names:
        column = table[name].combine_chunks()
        digest.update(name.encode())
        if pa.types.is_list(column.type):
            digest.update(np.packbits(np.asarray(column.is_valid())).tobytes())
            digest.update(np.asarray(_counts(column), "<i8").tobytes())
            column = column.flatten()
        digest.update(np.packbits(np.asarray(column.is_valid())).tobytes())
        if pa.types.is_string(column.type):
            column = column.fill_null("")
            digest.update(np.asarray(pc.binary_length(column), "<i8").tobytes())
            whole = pa.ListArray.from_arrays(pa.array([0, len(column)], pa.int32()), column)
            digest.update(pc.binary_join(whole, "")[0].as_buffer())
        else:
            digest.update(np.asarray(column.fill_null(0), "<i8").tobytes())
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
                ids = turn.hash_ids
                if ids is None:
                    kept.append(None)
                    new.append(None)
                else:
                    own = ids if isinstance(ids, PromptIds) else PromptIds(array("q", ids))
                    same = 0 if before is None else own.common(before)
                    kept.append(same)
                    new.append(own[same:])
                before = ids
            above[talk.conversation_id] = talk.turns
    return kept, new


def _give_ids(plays: Sequence[Play], kept: Sequence[int | None], new: pa.ListArray) -> None:
    data = memoryview(np.asarray(new.flatten(), np.int64).tobytes())
    ends = (8 * np.cumsum(_counts(new))).tolist()
    row = at = 0
    for play in plays:
        above: dict[str, list[Turn]] = {}
        for talk in play.conversations:
            before = _spawning(talk, above)
            for turn in talk.turns:
                same = kept[row]
                if same is not None:
                    own = before if isinstance(before, PromptIds) else PromptIds(array("q"))
                    if not 0 <= same <= len(own):
                        raise ValueError(f"turn {row} keeps {same} ids of a prompt that has fewer")
                    turn.hash_ids = own.grown(same, data[at : ends[row]])
                before, at, row = turn.hash_ids, ends[row], row + 1
            above[talk.conversation_id] = talk.turns


def _spawning(talk: Conversation, above: Mapping[str, Sequence[Turn]]) -> Sequence[int] | None:
    """The hash ids of the turn that spawned a conversation, if that is in one of those ``above``."""
    turns, after = above.get(talk.parent or "", ()), talk.after_turn
    return turns[after].hash_ids if after is not None and 0 <= after < len(turns) else None


# -- columns -----------------------------------------------------------------------------------------------------------


def _column(things: Sequence[Any], name: str) -> pa.Array:
    return pa.array([getattr(thing, name) for thing in things], COLUMNS.field(name).type)


def _lists(rows: Sequence[Sequence[Any] | None], name: str, kind: pa.DataType) -> pa.ListArray:
    return _listed(rows, pa.array([getattr(thing, name) for row in rows for thing in row or ()], kind))


def _listed(rows: Sequence[Sequence[Any] | None], values: pa.Array) -> pa.ListArray:
    """``values`` cut into the rows; None is null."""
    ends = np.cumsum([0, *(len(row or ()) for row in rows)], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(ends, mask=np.array([*(row is None for row in rows), False])), values)


def _counts(column: pa.ListArray) -> Ints:
    """How long the lists are; 0 where there is none."""
    counts: Ints = np.asarray(pc.list_value_length(column).fill_null(0), np.int64)
    return counts


def _begins(numbers: pa.Array) -> Ints:
    """The rows at which a number first comes."""
    column = np.asarray(numbers)
    return np.flatnonzero(np.diff(column, prepend=column[:1] - 1))


def _tuples(column: pa.ListArray, things: list[Any]) -> list[tuple[Any, ...] | None]:
    """``things`` cut into the lists of a column."""
    if not things and not column.null_count:
        return [()] * len(column)
    ends = np.cumsum(_counts(column)).tolist()
    cut = [tuple(things[a:b]) for a, b in pairwise([0, *ends])]
    if not column.null_count:
        return list(cut)
    return [one if there else None for one, there in zip(cut, np.asarray(column.is_valid()).tolist(), strict=True)]


def _flat(column: pa.ListArray) -> list[Any]:
    return _python(column.flatten())


def _python(column: pa.Array) -> list[Any]:
    """The values of a column, None where there is none; equal texts are one object."""
    if column.null_count == len(column):
        return [None] * len(column)
    if pa.types.is_string(column.type):
        encoded = column.dictionary_encode()
        texts = [*encoded.dictionary.to_pylist(), None]
        return [texts[index] for index in np.asarray(encoded.indices.fill_null(-1)).tolist()]
    values: list[Any] = np.asarray(column.fill_null(0)).tolist()
    if not column.null_count:
        return values
    return [
        value if there else None for value, there in zip(values, np.asarray(column.is_valid()).tolist(), strict=True)
    ]
