"""Mooncake JSONL: sessions of turns whose prompts are named block by block.

One JSON object per line, or an array of them::

    {"session_id", "input_length", "output_length", "hash_ids": [...], "timestamp": ms | "delay": ms}

``input_tokens``, ``output_tokens``, ``created_time`` and ``delay_ms`` are other names of the same. ``timestamp`` is the
arrival of a session's first turn, ``delay`` the time from the end of the previous response to a later turn; a later
turn with a timestamp and no delay is due then, and not before that end. ``hash_ids`` name the blocks of the prompt,
chained: equal ids mean equal tokens up to there. A line without ``session_id`` is a session of its own.

Lines mostly give whole prompts. There, outputs have no ids, so later prompts cannot hit them. Where later turns name
only what they add (:mod:`engine.traces.added`), outputs are part of later prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.collector import collector_paused
from engine.errors import GapscopeError
from engine.traces.added import add_up, names_only_what_it_adds
from engine.traces.fields import (
    MOST_TOKENS,
    MS,
    arrival_of,
    due_at,
    has_length,
    has_output,
    hash_ids_of,
    output_length,
    prompt_length,
    prompts_as_text,
    sampled,
)
from engine.traces.files import Head, name_of, place, rows
from engine.traces.growing import GrowingIds
from engine.traces.prompt_ids import PromptIds
from engine.traces.tree import Conversation, Play, Trace, Turn

NAME = "Mooncake JSONL"

KEYS = frozenset({"input_length", "hash_ids"})
"""What each row of such a trace mostly has, by which it is told."""
_TEXTS = ("text_input", "messages", "payload")


def looks_like(head: Head) -> bool:
    """Whether a file that begins like this is a Mooncake trace, or one whose prompts are text."""
    row = head.row
    return (has_length(row) or any(k in row for k in _TEXTS)) and has_output(row)


@collector_paused()
def read(path: Path, data: bytes) -> Trace:
    """The trace in ``data``, the bytes of the file at ``path``.

    Raises:
        GapscopeError: a line that is no JSON object or lacks a field, named by its number; prompts that are text; or
            ``hash_ids`` that fit no block size.
    """
    plays: dict[Any, Play] = {}
    lengths: list[int] = []
    counts: list[int] = []
    silent = ranked = 0  # requests without output, with a priority
    for number, row in rows(path, data, GrowingIds().loads):
        try:
            tokens, output = prompt_length(row), output_length(row)
            hash_ids = row.get("hash_ids")
            if hash_ids is not None:
                hash_ids = hash_ids_of(hash_ids)
                counts.append(len(hash_ids))
            session = row.get("session_id")
            play = plays.get(session) if session is not None else None
            if play is None:
                if session is None:
                    session = f"line{number}"
                name = str(session)
                play = plays[session] = Play(name, [Conversation(name, [])], arrival_of(row))
                turn = Turn(output, 0, (), (), tokens, hash_ids if hash_ids is None else PromptIds(hash_ids))
            else:
                if hash_ids is not None:
                    before = play.conversations[0].turns[-1].hash_ids
                    hash_ids = before.then(hash_ids) if isinstance(before, PromptIds) else PromptIds(hash_ids)
                delay = row["delay"] if "delay" in row else row.get("delay_ms")
                turn = Turn(output, 0 if delay is None else round(delay * MS), (), (), tokens, hash_ids)
                if delay is None:
                    _due(turn, row, play)
        except KeyError as error:
            if any(key in row for key in _TEXTS):
                texts = [n for n, other in rows(path, data) if isinstance(other, dict) and not has_length(other)]
                raise prompts_as_text(place(path, data, texts[0]), len(texts)) from None
            raise GapscopeError(f"{place(path, data, number)}: {_lacks(error.args[0])}") from None
        except (TypeError, AttributeError, OverflowError, ValueError):
            raise GapscopeError(
                f"{place(path, data, number)}: expected an object with whole numbers input_length and output_length, "
                "a list hash_ids of whole numbers, and timestamp or delay in milliseconds."
            ) from None
        if output == 0:
            turn.output_tokens = 1
            silent += 1
        if (
            type(tokens) is not int
            or type(output) is not int
            or not 0 < tokens <= MOST_TOKENS
            or not 0 <= output <= MOST_TOKENS
            or turn.think_ns < 0
        ):
            raise GapscopeError(
                f"{place(path, data, number)}: input_length={tokens!r}, output_length={output!r}, "
                f"delay={turn.think_ns / MS:g} ms; expected whole numbers from 1 to 1e8 (0 for no output) and a delay "
                "of at least 0."
            )
        if "priority" in row or "strict_priority" in row:
            ranked += 1
        play.conversations[0].turns.append(turn)
        lengths.append(tokens)
        if counts and len(counts) < len(lengths):
            what = "hash_ids is missing" if hash_ids is None else "hash_ids is there, and missing before"
            raise GapscopeError(f"{place(path, data, number)}: {what}; expected it in every line or in none.")
    if not plays:
        raise GapscopeError(f"{path}: an empty trace; expected one JSON object per line.")
    trace = Trace(name_of(path), "mooncake", "", list(plays.values()))
    if counts:
        trace.hash_block_tokens = block_tokens(path, lengths, counts)
    if not counts or names_only_what_it_adds(trace):
        add_up(trace)
    if silent:
        trace.notes["requests without output"] = sampled(silent)
    if ranked:
        trace.notes["priorities"] = f"of {ranked} requests, not used"
    return trace


def block_tokens(path: Path, lengths: Sequence[int], counts: Sequence[int]) -> int:
    """The block size that explains all numbers of ``hash_ids``: one id per block, the last block full or not.

    Raises:
        GapscopeError: no size explains all of them, or several do and none is a power of two.
    """
    tokens, ids = np.array(lengths, np.int64), np.array(counts, np.int64)
    for last_is_partial in (True, False):
        if last_is_partial:  # ids = ceil(tokens / size)
            if not ids.all():
                continue
            low = int((-(-tokens // ids)).max())
            several = ids > 1
            high = int(((tokens[several] - 1) // (ids[several] - 1)).min()) if several.any() else 1 << 62
        else:  # ids = floor(tokens / size)
            low = int((tokens // (ids + 1)).max()) + 1
            some = ids > 0
            high = int((tokens[some] // ids[some]).min()) if some.any() else 1 << 62
        if low > high:
            continue
        power = 1 << (low - 1).bit_length()
        if low == high or power <= high:
            return low if low == high else power
    raise GapscopeError(
        f"{path}: the numbers of hash_ids fit no single block size; expected one id per block of the prompt "
        "(input_length / block size, rounded up or down, alike in every line)."
    )


def _due(turn: Turn, row: dict[str, Any], play: Play) -> None:
    """When a later turn of a session without delay is due.

    Raises:
        KeyError: nothing says so.
    """
    at = arrival_of(row)
    if at is None or play.arrival_ns is None:
        raise KeyError("delay")
    conversation = play.conversations[0]
    due_at(turn, len(conversation.turns), conversation.conversation_id, max(0, at - play.arrival_ns))


def _lacks(field: str) -> str:
    if field == "delay":
        return "a later turn of its session without delay; expected milliseconds after the previous response."
    return f"{field} is missing; expected input_length and output_length in every line."
