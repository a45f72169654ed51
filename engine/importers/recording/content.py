"""Which tokens each request sent and got, as chained block keys: the same content has the same key in every run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import GapscopeError
from engine.importers.recording.files import Recording
from engine.traces.compact import is_compact, read_compact
from engine.traces.content import TokenIds, block_keys, json_ids, prompt_digest, token_ids
from engine.traces.files import digest_of
from engine.traces.prompts import HIGH, LOW, PlayPrompts, TokenSource, load_played
from engine.traces.tree import Trace


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


def find_trace(folder: Path, identity: Mapping[str, Any], given: Path | None) -> Path:
    """The trace file of a recording: the one given, or the file of the recorded name beside or above it.

    Raises:
        GapscopeError: there is none, or it is not the one that was played.
    """
    digest = identity["workload"]["trace_sha256"]
    name = trace_name(identity)
    places = [given] if given is not None else [folder / name, folder.parent / name]
    for place in places:
        if place.exists():
            found = read_compact(place).digest if is_compact(place) else digest_of(place)
            if found == digest:
                return place
            raise GapscopeError(
                f"{place} has the SHA-256 {found[:12]}..., but {folder} names one with {digest[:12]}...: "
                "give the trace that was played with --trace FILE."
            )
    where = f"{given} does not exist" if given is not None else f"{name} is neither in nor above {folder}"
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
    made = recording.identity["workload"].get("prompts")
    made = made if isinstance(made, dict) else {}
    read_as = recording.identity["workload"].get("read_as")
    trace, source = load_played(trace_file, read_as, made.get("ids_from", LOW), made.get("ids_below", HIGH))
    contents = Contents(trace, {}, [], [])
    if made.get("sent_as", "token ids") != "token ids":
        contents.unknown = [row["request_id"] for row in recording.requests]
        return contents
    plays = _Plays(recording, trace, source, own_outputs=made.get("outputs", "own") == "own", make_up=bool(made))
    size = recording.block_size
    for row in recording.requests:
        prompt = plays.prompt_of(row)
        name = row["request_id"]
        if prompt is None:
            contents.unknown.append(name)
        elif len(prompt) != row["input_tokens"] or prompt_digest(json_ids(prompt)) != row["prompt_sha256_16"]:
            contents.differing.append(name)
        elif size is not None:
            first = len(prompt) // size
            # The last sampled token has no KV, so a block that it would complete never exists.
            text = np.concatenate([prompt, token_ids(row["output_ids"])])[: max(len(prompt), _kv_tokens(row))]
            keys = block_keys(text, size)
            contents.by_request[name] = Content(keys[:first], keys[first:])
    return contents


def never_issued(recording: Recording, trace: Trace) -> int:
    """Turns of started plays that were never sent, as the client counted them or by what is missing."""
    counted = recording.identity["workload"].get("never_issued")
    if type(counted) is int:
        return counted
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


class _Plays:
    """The prompts of every play that was played, each play for itself.

    Without ``own_outputs`` all outputs in prompts are made up. With ``make_up`` those are that nobody was asked for
    (what lies before a cut) or whose ids were not told; else prompts after them are not known.
    """

    def __init__(
        self, recording: Recording, trace: Trace, source: TokenSource, own_outputs: bool, make_up: bool
    ) -> None:
        self._source = source
        self._own, self._make_up = own_outputs, make_up
        self._play_of = {t.conversation_id: play for play in trace.plays for t in play.conversations}
        rows = [row for row in recording.requests if not primes(row)]
        self._rows = {(play_id(row), row["session_id"], row["turn"]): row for row in rows}
        self._prompts: dict[str, PlayPrompts] = {}

    def prompt_of(self, row: Mapping[str, Any]) -> TokenIds | None:
        """The prompt that a request must have had; None where it cannot be told."""
        name, play = play_id(row), self._play_of.get(row["session_id"])
        if play is None:
            return None
        if name not in self._prompts:
            outputs = partial(self._output, name)
            self._prompts[name] = PlayPrompts(play, self._source, outputs, self._make_up, row.get("content") or 0)
        return self._prompts[name].of(row["session_id"], row["turn"])

    def _output(self, name: str, conversation: str, turn: int) -> TokenIds | None:
        row = self._rows.get((name, conversation, turn)) if self._own else None
        if row is None or (self._make_up and not told_whole(row)):
            return None
        return token_ids(row["output_ids"])


def play_id(row: Mapping[str, Any]) -> str:
    """The play that a request belongs to: named in its row, or the root of its tree."""
    return str(row.get("play_id") or row["root_session_id"])


def primes(row: Mapping[str, Any]) -> bool:
    """Whether a request only warmed the cache for a play that is taken up in the middle."""
    return row["phase"] == "primer" or bool(row.get("primed"))


def told_whole(row: Mapping[str, Any]) -> bool:
    """Whether a response came to its end and its token ids are all known."""
    return row["status"] == "ok" and 0 < len(row["output_ids"]) == row["output_tokens"]
