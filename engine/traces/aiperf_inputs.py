"""Prompts as text, as AIPerf takes them: rows of single turns, rows of conversations, and its ``inputs.json``.

::

    {"session_id", "text" | "texts", "output_length", "timestamp" | "delay": ms}     rows of one session are its turns
    {"session_id", "turns": [the same ...]}
    {"data": [{"session_id", "payloads": [...]}]}

A trace needs the lengths of prompts in tokens, which only the model's tokenizer knows: text is played where its length
stands beside it (``input_length`` or ``input_tokens``), and refused where it does not. Equal texts are equal tokens;
texts that merely begin alike share nothing. Each turn adds its text, and the response to the turn before it, to the
conversation.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import orjson

from engine.errors import GapscopeError
from engine.traces.fields import (
    LENGTH,
    MS,
    OUTPUT,
    arrival_of,
    due_at,
    has_length,
    output_length,
    prompt_length,
    prompts_as_text,
    sampled,
    to_ns,
)
from engine.traces.files import Head, name_of, place, rows
from engine.traces.tree import Conversation, Play, Segment, Trace, Turn

NAME = "AIPerf inputs with lengths (single_turn, multi_turn)"
_TEXT = ("text", "texts", "image", "images", "audio", "audios", "video", "videos")


def looks_like(head: Head) -> bool:
    """Whether a file that begins like this has prompts as text."""
    row = head.row
    turns, sessions = row.get("turns"), row.get("data")
    if isinstance(sessions, list):
        return bool(sessions) and isinstance(sessions[0], dict) and "payloads" in sessions[0]
    if isinstance(turns, list):
        return bool(turns) and isinstance(turns[0], dict) and any(key in turns[0] for key in _TEXT)
    return any(key in row for key in _TEXT)


def read(path: Path, data: bytes) -> Trace:
    """The trace in ``data``.

    Raises:
        GapscopeError: prompts without lengths, counted; a row of the wrong shape, named by its line.
    """
    found = list(rows(path, data))
    _check_lengths(path, data, found)
    plays: dict[Any, Play] = {}
    silent = 0
    for number, row in found:
        session = row.get("session_id")
        session = f"line{number}" if session is None else session
        for given in row.get("turns", [row]):
            try:
                play = plays.get(session)
                if play is None:
                    play = plays[session] = Play(str(session), [Conversation(str(session), [])], arrival_of(given))
                turn = _turn(given, play)
            except KeyError as error:
                raise GapscopeError(f"{place(path, data, number)}: {error.args[0]} is missing.") from None
            except (TypeError, AttributeError, ValueError, OverflowError):
                raise GapscopeError(
                    f"{place(path, data, number)}: expected turns with whole numbers input_length (at least 1) "
                    "and output_length, and timestamp or delay in milliseconds, at least 0."
                ) from None
            silent += output_length(given) == 0
            play.conversations[0].turns.append(turn)
    notes = {"prompts": "told apart as whole texts: those that merely begin alike share nothing"}
    if silent:
        notes["requests without output"] = sampled(silent)
    return Trace(name_of(path), "aiperf-inputs", "", list(plays.values()), notes=notes)


def _check_lengths(path: Path, data: bytes, found: list[tuple[int, Any]]) -> None:
    """Refuse prompts without lengths."""
    without: list[int] = []
    for number, row in found:
        if not isinstance(row, dict):
            raise GapscopeError(f"{place(path, data, number)}: expected an object.")
        if isinstance(row.get("data"), list):
            sessions = [s for s in row["data"] if isinstance(s, dict)]
            without += [number for s in sessions for _ in s.get("payloads") or ()]
            continue
        turns = row.get("turns", [row])
        if not isinstance(turns, list):
            raise GapscopeError(f"{place(path, data, number)}: turns is no list.")
        without += [number for turn in turns if not isinstance(turn, dict) or not has_length(turn)]
    if without:
        raise prompts_as_text(place(path, data, without[0]), len(without))


def _turn(given: dict[str, Any], play: Play) -> Turn:
    tokens, output, number = prompt_length(given), output_length(given), len(play.conversations[0].turns)
    if not LENGTH.accepts(tokens) or not OUTPUT.accepts(output):
        raise ValueError
    prompt = {key: given[key] for key in _TEXT if key in given}
    content = hashlib.blake2b(orjson.dumps(prompt, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()
    turn = Turn(max(1, output), 0, (Segment(f"text:{content}:{tokens}", tokens),))
    delay = given.get("delay")
    if not number:
        return turn
    if delay is None and play.arrival_ns is not None and (at := arrival_of(given)) is not None:
        due_at(turn, number, play.source_trace_id, max(0, at - play.arrival_ns))
    else:
        turn.think_ns = to_ns(delay or 0, MS)
        if turn.think_ns < 0:
            raise ValueError
    return turn
