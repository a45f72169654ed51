"""Which tokens each request sent and got, as chained block keys: the same content has the same key in every run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import GapscopeError
from engine.importers.recording.files import Recording
from engine.traces import agentic
from engine.traces.content import TokenIds, block_keys, token_ids
from engine.traces.tree import Conversation, Trace


@dataclass(frozen=True)
class Content:
    """Block keys of a request: of its prompt, and of the blocks that its outputs filled with KV."""

    prompt: list[int]
    outputs: list[int]

    @property
    def keys(self) -> list[int]:
        """Keys by block position."""
        return self.prompt + self.outputs


@dataclass
class Contents:
    """The contents of a recording's requests, and what did not agree with them."""

    trace: Trace
    by_request: dict[str, Content]
    differing: list[str]
    """Requests whose prompt, rebuilt from trace and outputs, is not the one that was sent."""
    unknown: list[str]
    """Requests whose prompt cannot be rebuilt: not a turn of the trace, or the output before it is not recorded."""


def find_trace(recording: Recording, given: Path | None) -> Path:
    """The trace file of a recording: the one given, or the file of the recorded name beside or above it.

    Raises:
        GapscopeError: there is none, or it is not the one that was played.
    """
    digest = recording.identity["workload"]["trace_sha256"]
    name = trace_name(recording.identity)
    places = [given] if given is not None else [recording.path / name, recording.path.parent / name]
    for place in places:
        if place.is_file():
            found = hashlib.sha256(place.read_bytes()).hexdigest()
            if found == digest:
                return place
            raise GapscopeError(
                f"{place} has the SHA-256 {found[:12]}..., but {recording.path} names one with {digest[:12]}...: "
                "give the trace that was played with --trace FILE."
            )
    where = f"{given} does not exist" if given is not None else f"{name} is neither in nor above {recording.path}"
    raise GapscopeError(
        f"The trace that was played (SHA-256 {digest[:12]}...) is needed for the prompts, but {where}: "
        "give it with --trace FILE."
    )


def trace_name(identity: Mapping[str, Any]) -> str:
    """What the file of the trace that was played is called."""
    workload = identity.get("workload")
    return Path(str((workload.get("trace") if isinstance(workload, dict) else None) or "trace.jsonl")).name


def rebuild(recording: Recording, trace_file: Path) -> Contents:
    """Rebuild every prompt from the trace and the recorded outputs, and check it against what was sent."""
    trace, ids = agentic.read_with_ids(trace_file)
    talks = {t.conversation_id: t for play in trace.plays for t in play.conversations}
    rows = {(r["session_id"], r["turn"]): r for r in recording.requests}
    prompts = _Prompts(talks, ids, rows)
    contents = Contents(trace, {}, [], [])
    for row in recording.requests:
        prompt = prompts.of(row["session_id"], row["turn"])
        name = row["request_id"]
        if prompt is None:
            contents.unknown.append(name)
        elif len(prompt) != row["input_tokens"] or prompt_digest(prompt) != row["prompt_sha256_16"]:
            contents.differing.append(name)
        else:
            size, first = recording.block_size, len(prompt) // recording.block_size
            # The last sampled token has no KV, so a block that it would complete never exists.
            text = np.concatenate([prompt, token_ids(row["output_ids"])])[: max(len(prompt), _kv_tokens(row))]
            keys = block_keys(text, size)
            contents.by_request[name] = Content(keys[:first], keys[first:])
    return contents


def prompt_digest(prompt: TokenIds) -> str:
    """The client's digest of a prompt: 16 hex digits of the SHA-256 of its ids in decimal, joined by commas."""
    return hashlib.sha256(",".join(map(str, prompt.tolist())).encode()).hexdigest()[:16]


def never_issued(recording: Recording, trace: Trace) -> int:
    """Turns of started plays that were never sent."""
    sent = {(r["session_id"], r["turn"]) for r in recording.requests}
    started = {r["root_session_id"] for r in recording.requests}
    return sum(
        (talk.conversation_id, turn) not in sent
        for play in trace.plays
        if play.source_trace_id in started
        for talk in play.conversations
        for turn in range(len(talk.turns))
    )


def _kv_tokens(row: Mapping[str, Any]) -> int:
    return int(row["input_tokens"]) + len(row["output_ids"]) - 1


class _Prompts:
    """Prompts by conversation and turn, each built once; None where one cannot be built."""

    def __init__(
        self,
        talks: Mapping[str, Conversation],
        ids: Mapping[str, TokenIds],
        rows: Mapping[tuple[str, int], Mapping[str, Any]],
    ) -> None:
        self._talks, self._ids, self._rows = talks, ids, rows
        self._built: dict[tuple[str, int], TokenIds | None] = {}

    def of(self, conversation: str, turn: int) -> TokenIds | None:
        key = (conversation, turn)
        if key not in self._built:
            self._built[key] = self._build(conversation, turn)
        return self._built[key]

    def _build(self, conversation: str, turn: int) -> TokenIds | None:
        talk = self._talks.get(conversation)
        if talk is None or turn >= len(talk.turns):
            return None
        parts = [self._ids[s.content] for s in talk.turns[turn].new_input]
        before: tuple[str, int] | None = None
        if turn > 0:
            before = (conversation, turn - 1)
        elif talk.mode == "fork" and talk.parent is not None and talk.after_turn is not None:
            before = (talk.parent, talk.after_turn)
        if before is not None:
            context, row = self.of(*before), self._rows.get(before)
            if context is None or row is None:
                return None
            parts = [context, token_ids(row["output_ids"]), *parts]
        return np.concatenate(parts)
