"""Mooncake JSONL whose rows say which others they wait for: ``sess``, ``dep``, ``joins``, ``think_ms`` and ``hp``.

One JSON object per line, or an array of them; names of fields in any case. Besides ``timestamp`` (ms),
``input_length``, ``output_length`` and ``hash_ids``:

* ``dep``: the row that comes before this one, ``joins``: rows of subagents that it waits for as well. Both count rows
  from 0 in the order of their timestamps. The row is due ``think_ms`` (or ``delay_ms``) after the last of them ended.
* ``sess``: the number of its session, whose rows are one play. Sessions are played in the order of their numbers.
* ``hp`` = [k, n]: its prompt begins with the first n blocks of row k of the file; ``hash_ids`` are those after them.

A row that follows ``dep`` continues its conversation: of several the one whose prompt begins with the whole prompt of
``dep``, else the one that joins others, else the first; the others are children.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.collector import collector_paused
from engine.errors import GapscopeError
from engine.traces.fields import LENGTH, OUTPUT, arrival_of, hash_ids_of, output_length, prompt_length, sampled, to_ns
from engine.traces.files import Head, name_of, place, rows
from engine.traces.mooncake import block_tokens
from engine.traces.tree import Conversation, Edge, Play, Trace, Turn

NAME = "Mooncake JSONL with dep, joins and hp (InferaSim)"
_LINKS = ("sess", "dep", "joins", "hp")


@dataclass(slots=True)
class _Row:
    number: int  # in the file, for messages
    tokens: int
    output: int
    ids: array[int]
    timed: bool
    at_ns: int
    think_ns: int
    session: int | None
    dep: int | None
    joins: list[int]


def looks_like(head: Head) -> bool:
    """Whether a file that begins like this has rows that wait for each other."""
    keys = {key.lower() for key in head.row}
    if not keys & {"input_length", "input_tokens"}:
        return False
    start = head.start.lower()
    return any(f'"{link}"'.encode() in start for link in _LINKS)


@collector_paused()
def read(path: Path, data: bytes) -> Trace:
    """The trace in ``data``.

    Raises:
        GapscopeError: a row that lacks a field or refers to a row that is not there, named by its line; or ids that
            fit no block size.
    """
    found = _read_rows(path, data)
    order = sorted(found, key=lambda row: row.at_ns)
    sessions: dict[tuple[int, int], list[int]] = defaultdict(list)
    keys: list[tuple[int, int]] = []
    for position, row in enumerate(order):
        for other in ([] if row.dep is None else [row.dep]) + row.joins:
            if not 0 <= other < position:
                raise GapscopeError(
                    f"{place(path, data, row.number)}: waits for row {other}, expected an earlier one than itself "
                    f"(it is row {position}, counted from 0 in the order of timestamps)."
                )
        if row.session is not None:
            key = (0, row.session)
        else:
            key = (1, position) if row.dep is None else keys[row.dep]
        for other in ([] if row.dep is None else [row.dep]) + row.joins:
            if keys[other] != key:
                raise GapscopeError(
                    f"{place(path, data, row.number)}: waits for row {other}, which is of another session."
                )
        keys.append(key)
        sessions[key].append(position)
    plays = [
        _play(f"sess{key[1]}" if key[0] == 0 else f"row{key[1]}", members, order)
        for key, members in sorted(sessions.items())
    ]
    block = block_tokens(path, [row.tokens for row in found], [len(row.ids) for row in found])
    trace = Trace(name_of(path), "mooncake-linked", "", plays, block)
    silent = sum(row.output == 0 for row in found)
    if silent:
        trace.notes["requests without output"] = sampled(silent)
    return trace


def _read_rows(path: Path, data: bytes) -> list[_Row]:
    """The rows in the order of the file, prompts written out."""
    out: list[_Row] = []
    for number, given in rows(path, data):
        try:
            row = {key.lower(): value for key, value in given.items()}
            ids = hash_ids_of(row["hash_ids"] if row.get("hash_ids") is not None else [])
            if row.get("hp") is not None:
                source, blocks = row["hp"]
                if not 0 <= source < len(out) or not 0 <= blocks <= len(out[source].ids):
                    raise GapscopeError(
                        f"{place(path, data, number)}: hp is {row['hp']}, expected an earlier row of the file, counted "
                        "from 0, and no more blocks than its prompt has."
                    )
                ids = out[source].ids[:blocks] + ids
            think, at = row.get("think_ms"), arrival_of(row)
            out.append(
                _Row(
                    number,
                    prompt_length(row),
                    output_length(row),
                    ids,
                    at is not None,
                    at or 0,
                    to_ns((row.get("delay_ms") if think is None else think) or 0),
                    _index(row.get("sess")),
                    _index(row.get("dep")),
                    [join for join in map(_index, row.get("joins") or ()) if join is not None],
                )
            )
        except KeyError as error:
            raise GapscopeError(f"{place(path, data, number)}: {error.args[0]} is missing.") from None
        except (TypeError, AttributeError, ValueError, OverflowError):
            raise GapscopeError(
                f"{place(path, data, number)}: expected an object with whole numbers input_length, output_length, sess "
                "and dep, lists hash_ids, joins and hp of whole numbers, and timestamp and think_ms in milliseconds."
            ) from None
        last = out[-1]
        if not LENGTH.accepts(last.tokens) or not OUTPUT.accepts(last.output):
            raise GapscopeError(
                f"{place(path, data, number)}: input_length={last.tokens!r}, output_length={last.output!r}; expected "
                "whole numbers from 1 to 1e8 (0 for no output)."
            )
        if last.think_ns < 0:
            raise GapscopeError(f"{place(path, data, number)}: think_ms is negative, expected at least 0.")
    if not out:
        raise GapscopeError(f"{path}: an empty trace; expected one JSON object per line.")
    return out


def _index(value: Any) -> int | None:
    """A reference to a row, None where there is none (null or -1)."""
    if value is None or value == -1:
        return None
    if type(value) is not int:
        raise TypeError
    return value


def _play(name: str, members: list[int], order: list[_Row]) -> Play:
    """One session: ``members`` are the positions of its rows."""
    first = order[members[0]]
    timed = any(order[m].at_ns != first.at_ns for m in members)
    next_of = _continuations(members, order)
    conversations: list[Conversation] = []
    places: dict[int, tuple[Conversation, int]] = {}
    for position in members:
        row = order[position]
        if row.dep is not None and next_of[row.dep] == position:
            talk = places[row.dep][0]
        else:
            talk = Conversation(f"{name}/{position}" if conversations else name, [])
            if conversations:
                parent, after = places[row.dep] if row.dep is not None else (conversations[0], 0)
                talk.parent, talk.after_turn, talk.depth = parent.conversation_id, after, parent.depth + 1
                parent.turns[after].spawn += (talk.conversation_id,)
            conversations.append(talk)
        places[position] = (talk, len(talk.turns))
        turn = Turn(max(1, row.output), row.think_ns, prompt_tokens=row.tokens, hash_ids=row.ids)
        turn.start_ns = row.at_ns - first.at_ns if timed else None
        talk.turns.append(turn)
    if len(conversations) > 1:  # else each turn follows the one before it, which needs no edges
        for position in members:
            talk, number = places[position]
            _link(order[position], talk, number, places)
    return Play(name, conversations, first.at_ns if first.timed else None)


def _link(row: _Row, talk: Conversation, number: int, places: dict[int, tuple[Conversation, int]]) -> None:
    turn = talk.turns[number]
    waits = [("sequence" if number else "spawn", row.dep)] if row.dep is not None else []
    edges = []
    for relation, position in [*waits, *(("join", join) for join in row.joins)]:
        source, at = places[position]
        edges.append(Edge(source.conversation_id, at, "completion", row.think_ns, relation))  # type: ignore[arg-type]
    turn.edges = tuple(edges)
    if not edges and row.think_ns:
        turn.not_before_ns = row.think_ns


def _continuations(members: list[int], order: list[_Row]) -> dict[int, int]:
    """By row, the one of those that follow it which continues its conversation."""
    best: dict[int, tuple[bool, bool, int]] = {}
    for position in members:
        row = order[position]
        if row.dep is not None:
            before = order[row.dep].ids
            rank = (row.ids[: len(before)] != before, not row.joins, position)
            best[row.dep] = min(best.get(row.dep, rank), rank)
    return {dep: position for dep, (_, _, position) in best.items()}
