"""Agentic traces (JSON Lines, ``agentic-trace/1``): conversations that fork, spawn and join, with token ids.

Rows are ``meta`` (first), ``system`` (a shared system prompt) and ``session`` (one conversation with its turns).
The prompt of a fresh conversation's first turn starts with its system prompt; a forked child starts with its
parent's whole context. The compact form (Parquet, no token ids) reads back as the equal trace.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from engine import jsonl
from engine.errors import GapscopeError
from engine.jsonl import COUNT, DURATION, TEXT, Spec, Type, list_of, one_of, optional
from engine.traces.compact import compact_name, is_compact, read_compact, write_compact
from engine.traces.content import TokenIds, content_of, token_ids
from engine.traces.files import Head, name_of, unpacked
from engine.traces.tree import Conversation, Play, Segment, Trace, Turn

__all__ = [
    "FORMAT",
    "NAME",
    "compact_name",
    "is_compact",
    "load",
    "looks_like",
    "read",
    "read_compact",
    "read_with_ids",
    "write_compact",
]

FORMAT = "agentic-trace/1"
NAME = "the session-tree JSONL of the recordings"

_PARENT: Spec = {"session_id": TEXT, "after_turn": COUNT, "mode": one_of("fork", "fresh")}
_TURN: Spec = {
    "turn": COUNT,
    "input_tokens": COUNT,
    "input_ids": Type("a list of token ids", lambda v: type(v) is list),
    "output_tokens": Type("a whole number of at least 1", lambda v: type(v) is int and v >= 1),
    "think_s": DURATION,
    "spawn": list_of(TEXT),
}
_SESSION: Spec = {
    "session_id": TEXT,
    "system": optional(TEXT),
    "parent": optional(Type("an object", lambda v: type(v) is dict)),
    "turns": Type("a list of at least one turn", lambda v: type(v) is list and len(v) > 0),
}
_SYSTEM: Spec = {"system": TEXT, "ids": Type("a list of token ids", lambda v: type(v) is list)}
_SPECS: dict[str, Spec] = {"meta": {"schema": TEXT}, "system": _SYSTEM, "session": _SESSION}


def looks_like(head: Head) -> bool:
    """Whether a trace that begins like this is an agentic trace, or says that it is one."""
    kind = head.row.get("kind")
    return isinstance(kind, str) and kind in _SPECS


def read(path: Path, data: bytes) -> Trace:
    """The trace in ``data``, JSON Lines.

    Raises:
        GapscopeError: as :func:`load`.
    """
    trace, _ = _read(path, data)
    return trace


def load(path: Path) -> Trace:
    """The trace in ``path``, JSON Lines or compact; both give the equal trace.

    Raises:
        GapscopeError: unreadable, malformed, or not a forest of conversations.
    """
    return read_compact(path) if is_compact(path) else read_with_ids(path)[0]


def read_with_ids(path: Path) -> tuple[Trace, dict[str, TokenIds]]:
    """The trace in a JSON Lines file and the token ids of every content that it names.

    Raises:
        GapscopeError: as :func:`load`; a compact trace holds no token ids.
    """
    if is_compact(path):
        raise GapscopeError(
            f"{path} is a compact trace without token ids: give the JSON Lines file that it was made from."
        )
    given = jsonl.read_bytes(path)
    trace, ids = _read(path, unpacked(path, given))
    trace.digest = hashlib.sha256(given).hexdigest()
    return trace, ids


def _read(path: Path, data: bytes) -> tuple[Trace, dict[str, TokenIds]]:
    reader = _Reader(path)
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            reader.take(number, line)
    trace = Trace(
        name=name_of(path),
        format=FORMAT,
        digest="",
        plays=reader.plays(),
        notes={k: str(v) for k, v in reader.meta.items() if k in ("seed", "sessions", "note")},
    )
    return trace, reader.ids


@dataclass
class _Session:
    line: int
    system: str | None
    talk: Conversation
    children: list[str] = field(default_factory=list)


class _Reader:
    """Takes rows one by one, then joins them into plays."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.meta: dict[str, Any] = {}
        self.ids: dict[str, TokenIds] = {}
        self._systems: dict[str, Segment] = {}
        self._sessions: dict[str, _Session] = {}
        self._rows = 0

    def take(self, line: int, text: bytes) -> None:
        try:
            row = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise self._error(line, f"not a JSON object ({error}); is the file cut off?") from error
        self._check(line, row, {"kind": one_of(*_SPECS)})
        self._check(line, row, _SPECS[row["kind"]])
        self._rows += 1
        if row["kind"] == "meta":
            if row["schema"] != FORMAT:
                raise self._error(line, f"schema is {row['schema']!r}, expected {FORMAT!r}")
            self.meta = row
        elif self._rows == 1:
            raise self._error(line, f"expected the meta row with schema {FORMAT!r} first")
        elif row["kind"] == "system":
            if row["system"] in self._systems:
                raise self._error(line, f"the system prompt {row['system']!r} is defined twice")
            self._systems[row["system"]] = self._segment(line, row["ids"], row.get("tokens"))
        else:
            self._take_session(line, row)

    def _take_session(self, line: int, row: dict[str, Any]) -> None:
        name, parent = row["session_id"], row["parent"]
        if name in self._sessions:
            first = self._sessions[name].line
            raise self._error(line, f"the session {name!r} is defined twice, first in line {first}")
        if parent is not None:
            self._check(line, parent, _PARENT, "parent.")
        turns = []
        for number, turn in enumerate(row["turns"]):
            self._check(line, turn, _TURN, f"turn {number}: ")
            if turn["turn"] != number:
                raise self._error(line, f"turn {turn['turn']} stands where turn {number} is expected")
            turns.append(
                Turn(
                    output_tokens=turn["output_tokens"],
                    think_ns=round(turn["think_s"] * 1e9),
                    new_input=(self._segment(line, turn["input_ids"], turn["input_tokens"]),),
                    spawn=tuple(turn["spawn"]),
                )
            )
        talk = Conversation(name, turns)
        if parent is not None:
            talk.parent, talk.after_turn, talk.mode = parent["session_id"], parent["after_turn"], parent["mode"]
        self._sessions[name] = _Session(line, row["system"], talk)

    def plays(self) -> list[Play]:
        """The conversations joined into plays, in file order.

        Raises:
            GapscopeError: a missing parent, child or system prompt, a cycle, or a child that nobody spawns.
        """
        if not self._rows:
            raise GapscopeError(f"{self.path} is empty: expected an {FORMAT} trace.")
        for session in self._sessions.values():
            self._join(session)
        roots: dict[str, list[Conversation]] = defaultdict(list)
        for session in self._sessions.values():
            roots[self._root_of(session)].append(session.talk)
        return [
            Play(root, [self._sessions[root].talk, *(t for t in talks if t.conversation_id != root)])
            for root, talks in sorted(roots.items(), key=lambda item: self._sessions[item[0]].line)
        ]

    def _join(self, session: _Session) -> None:
        """Check a conversation's links and put its system prompt before its first turn."""
        talk, line = session.talk, session.line
        for number, turn in enumerate(talk.turns):
            for name in turn.spawn:
                child = self._sessions.get(name)
                if child is None:
                    raise self._error(
                        line, f"turn {number} spawns the session {name!r}, which is not defined in the trace"
                    )
                if (child.talk.parent, child.talk.after_turn) != (talk.conversation_id, number):
                    said = f"turn {child.talk.after_turn} of {child.talk.parent!r}" if child.talk.parent else "nobody"
                    raise self._error(
                        line, f"turn {number} spawns the session {name!r}, whose parent (line {child.line}) is {said}"
                    )
        if talk.parent is not None:
            parent = self._sessions.get(talk.parent)
            if parent is None:
                raise self._error(line, f"the parent session {talk.parent!r} is not defined in the trace")
            assert talk.after_turn is not None
            turns = parent.talk.turns
            if talk.after_turn >= len(turns) or talk.conversation_id not in turns[talk.after_turn].spawn:
                raise self._error(
                    line,
                    f"the session {talk.conversation_id!r} is never started: turn {talk.after_turn} of its parent "
                    f"{talk.parent!r} (line {parent.line}) does not spawn it",
                )
        if talk.mode == "fork" and talk.parent is not None:
            return
        if session.system is not None:
            if session.system not in self._systems:
                raise self._error(line, f"the system prompt {session.system!r} is not defined in the trace")
            first = talk.turns[0]
            first.new_input = (self._systems[session.system], *first.new_input)

    def _root_of(self, session: _Session) -> str:
        """The root of a conversation; sets its depth."""
        seen = [session.talk.conversation_id]
        talk = session.talk
        while talk.parent is not None:
            if talk.parent in seen:
                ring = " -> ".join([*seen[seen.index(talk.parent) :], talk.parent])
                raise self._error(session.line, f"the sessions form a cycle ({ring}), expected a tree with one root")
            seen.append(talk.parent)
            talk = self._sessions[talk.parent].talk
        session.talk.depth = len(seen) - 1
        return talk.conversation_id

    def _segment(self, line: int, values: list[Any], tokens: Any) -> Segment:
        try:
            ids = token_ids(values)
        except (ValueError, TypeError, OverflowError):
            raise self._error(line, "a list of token ids holds something that is not a token id") from None
        if tokens is not None and tokens != len(ids):
            raise self._error(line, f"{tokens} tokens are announced but {len(ids)} token ids given")
        content = content_of(ids)
        self.ids[content] = ids
        return Segment(content, len(ids))

    def _check(self, line: int, row: Any, spec: Spec, where: str = "") -> None:
        problem = jsonl.problem_of(row, spec)
        if problem:
            raise self._error(line, where + problem)

    def _error(self, line: int, problem: str) -> GapscopeError:
        return GapscopeError(f"{self.path} line {line}: {problem}.")
