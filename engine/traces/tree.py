"""The one model of a workload: plays made of conversations made of turns.

A *play* is a root conversation with everything it spawns. A turn's prompt is the conversation's context so far
plus new input; its output joins the context. Content is described by *segments*: equal segment ids mean equal
tokens, so block identity follows without the token ids themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

ForkMode = Literal["fork", "fresh"]
Trigger = Literal["dispatch", "completion"]
Relation = Literal["sequence", "spawn", "join", "barrier"]


@dataclass(frozen=True, slots=True)
class Segment:
    """``tokens`` tokens of one content; equal ``content`` means equal tokens."""

    content: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Edge:
    """What a turn waits for: another turn of its play, and ``delay_ns`` from its dispatch or its completion on."""

    conversation_id: str
    turn: int
    trigger: Trigger
    delay_ns: int
    relation: Relation


@dataclass(slots=True)
class Turn:
    """One request of a conversation.

    ``new_input`` is what this turn adds to the context (the system prompt is part of turn 0 of a fresh
    conversation). ``think_ns`` passes between the end of what the turn waits for and its dispatch. ``spawn``
    names conversations of the same play that start when this turn's response ended; the next turn of this
    conversation joins on all of them. ``hash_ids`` replaces segments where a trace names its blocks directly:
    the whole prompt's block ids, which prompts of one beginning share (:class:`engine.traces.prompt_ids.PromptIds`).

    ``edges`` replaces the rules above where a trace names what a turn waits for one by one: it is due when each edge's
    delay is over (and ``not_before_ns`` after its play began, if that is set). ``spawn`` then only says where in the
    tree the children hang, and ``think_ns`` is the delay after the previous turn, for statistics. A turn with ``()``
    waits for nothing but its play. ``start_ns`` and ``api_ns`` are when the request was sent in the recording, from the
    beginning of its play on, and how long it took; None where that is not recorded.
    """

    output_tokens: int
    think_ns: int
    new_input: tuple[Segment, ...] = ()
    spawn: tuple[str, ...] = ()
    prompt_tokens: int | None = None  # given together with hash_ids; else derived from the segments
    hash_ids: Sequence[int] | None = None
    edges: tuple[Edge, ...] | None = None
    not_before_ns: int | None = None
    start_ns: int | None = None
    api_ns: int | None = None


@dataclass(slots=True)
class Conversation:
    """Turns that share a growing context.

    ``fork`` starts from the parent's whole context after ``after_turn``; ``fresh`` starts from nothing.
    """

    conversation_id: str
    turns: list[Turn]
    parent: str | None = None
    after_turn: int | None = None
    mode: ForkMode = "fresh"
    depth: int = 0


@dataclass(slots=True)
class Play:
    """A root conversation and all that it spawns; ``conversations[0]`` is the root.

    ``arrival_ns`` is when the play arrived in the recording, where it says so; a closed loop has no use for it.
    """

    source_trace_id: str
    conversations: list[Conversation]
    arrival_ns: int | None = None


@dataclass(slots=True)
class Trace:
    """A workload with its identity.

    ``digest`` is the SHA-256 of the file it was first read from; ``read_as`` has what a user decided where the format
    leaves a choice.
    """

    name: str
    format: str
    digest: str
    plays: list[Play]
    hash_block_tokens: int | None = None
    notes: dict[str, str] = field(default_factory=dict)
    read_as: dict[str, str] = field(default_factory=dict)
