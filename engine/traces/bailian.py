"""Alibaba's Bailian traces: chats as chains of requests, prompts named in blocks of 16 tokens.

One JSON object per line::

    {"chat_id", "parent_chat_id": -1 | the chat before, "timestamp": s, "input_length", "output_length", "hash_ids"}

A chain of parents is one conversation. Every request has the time at which it arrived: a later turn is due then, and
not before the response to the turn before it ended. Where several follow one, the first goes on and the others are
children of their own. Ids name the content of a block, so a block is found again only after the same blocks.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.collector import collector_paused
from engine.errors import GapscopeError
from engine.jsonl import NUMBER, Spec, Type, list_of, problem_of
from engine.traces.fields import LENGTH, OUTPUT, hash_ids_of, sampled, to_ns
from engine.traces.files import Head, name_of, place, rows
from engine.traces.tree import Conversation, Edge, Play, Trace, Turn

NAME = "Bailian JSONL"
BLOCK_TOKENS = 16
S = 1_000_000_000

_ID = Type("a whole number or text", lambda v: type(v) in (int, str))
_ROW: Spec = {
    "chat_id": _ID,
    "parent_chat_id": _ID,
    "timestamp": Type("seconds from -1e9 to 9e9", lambda v: NUMBER.accepts(v) and -1e9 <= v <= 9e9),
    "input_length": LENGTH,
    "output_length": OUTPUT,
    "hash_ids": list_of(Type("a whole number of 64 bits", lambda v: type(v) is int and -(1 << 63) <= v < 1 << 64)),
}


@dataclass(slots=True)
class _Chat:
    number: int
    key: int | str
    parent: int | str
    at_ns: int
    turn: Turn


def looks_like(head: Head) -> bool:
    """Whether a file that begins like this is a trace of Bailian."""
    return {"chat_id", "parent_chat_id", "input_length"} <= head.row.keys()


@collector_paused()
def read(path: Path, data: bytes) -> Trace:
    """The trace in ``data``.

    Raises:
        GapscopeError: a row of the wrong shape or named twice, with its line; chats that are each other's parents.
    """
    chats: dict[int | str, _Chat] = {}
    silent = 0
    for number, row in rows(path, data):
        problem = problem_of(row, _ROW)
        blocks = 0 if problem else -(-row["input_length"] // BLOCK_TOKENS)
        if not problem and len(row["hash_ids"]) != blocks:
            problem = f"{len(row['hash_ids'])} hash_ids, expected {blocks}: one per {BLOCK_TOKENS} tokens"
        if not problem and row["chat_id"] in chats:
            problem = f"chat_id {row['chat_id']} is there already, in row {chats[row['chat_id']].number}"
        if problem:
            raise GapscopeError(f"{place(path, data, number)}: {problem}.")
        ids = hash_ids_of(row["hash_ids"])
        turn = Turn(max(1, row["output_length"]), 0, prompt_tokens=row["input_length"], hash_ids=ids)
        silent += row["output_length"] == 0
        chat = _Chat(number, row["chat_id"], row["parent_chat_id"], to_ns(row["timestamp"], S), turn)
        chats[chat.key] = chat
    if not chats:
        raise GapscopeError(f"{path}: an empty trace; expected one JSON object per line.")
    after: dict[Any, list[_Chat]] = defaultdict(list)
    for chat in sorted(chats.values(), key=lambda c: c.at_ns):
        after[chat.parent if chat.parent in chats else None].append(chat)
    plays = [_play(root, after) for root in after[None]]
    left = len(chats) - sum(len(c.turns) for play in plays for c in play.conversations)
    if left:
        raise GapscopeError(f"{path}: {left} chats are each other's parents; expected chains that begin somewhere.")
    trace = Trace(name_of(path), "bailian", "", plays, BLOCK_TOKENS)
    lost = sum(root.parent not in (-1, "-1") for root in after[None])
    if lost:
        trace.notes["chats without their parent"] = f"{lost}, each a play of its own"
    if silent:
        trace.notes["requests without output"] = sampled(silent)
    return trace


def _play(root: _Chat, after: dict[Any, list[_Chat]]) -> Play:
    """A root and all that follows it."""
    talk = Conversation(str(root.key), [])
    conversations = [talk]
    waiting = [(root, talk)]
    for chat, talk in waiting:  # grows: each comes after its parent
        turn, number = chat.turn, len(talk.turns)
        talk.turns.append(turn)
        turn.start_ns = max(0, chat.at_ns - root.at_ns)
        first = True
        for follower in after.get(chat.key, ()):
            into = talk
            if not first:
                into = Conversation(str(follower.key), [], talk.conversation_id, number, "fresh", talk.depth + 1)
                turn.spawn += (into.conversation_id,)
                conversations.append(into)
            edge = Edge(talk.conversation_id, number, "completion", 0, "sequence" if first else "spawn")
            follower.turn.edges = (edge,)
            follower.turn.not_before_ns = max(0, follower.at_ns - root.at_ns)
            waiting.append((follower, into))
            first = False
    return Play(str(root.key), conversations, root.at_ns)
