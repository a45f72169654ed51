"""Mooncake JSONL: sessions of turns whose prompts are named block by block.

One JSON object per line::

    {"session_id", "input_length", "output_length", "hash_ids": [...], "timestamp": ms | "delay": ms}

``timestamp`` is the arrival of a session's first turn, ``delay`` the time from the end of the previous response to
a later turn. ``hash_ids`` name the blocks of the whole prompt, chained: equal ids mean equal tokens up to there. A
line without ``session_id`` is a session of its own. Outputs have no ids, so later prompts cannot hit them.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np

from engine.collector import collector_paused
from engine.errors import GapscopeError
from engine.traces.files import Head, name_of, place, rows
from engine.traces.tree import Conversation, Play, Trace, Turn

NAME = "Mooncake JSONL"
MS = 1_000_000


KEYS = frozenset({"input_length", "hash_ids"})
"""What each row of such a trace has, by which it is told."""


def looks_like(head: Head) -> bool:
    """Whether a file that begins like this is a Mooncake trace."""
    return head.row.keys() >= KEYS


@collector_paused()
def read(path: Path, data: bytes) -> Trace:
    """The trace in ``data``, the bytes of the file at ``path``.

    Raises:
        GapscopeError: a line that is no JSON object or lacks a field, named by its number; or ``hash_ids`` that fit
            no block size.
    """
    plays: dict[Any, Play] = {}
    lengths: list[int] = []
    counts: list[int] = []
    for number, row in rows(path, data):
        try:
            tokens, output, hash_ids = row["input_length"], row["output_length"], row["hash_ids"]
            session = row.get("session_id")
            play = plays.get(session) if session is not None else None
            if play is None:
                if session is None:
                    session = f"line{number}"
                name = str(session)
                timestamp = row.get("timestamp")
                arrival = None if timestamp is None else round(timestamp * MS)
                play = plays[session] = Play(name, [Conversation(name, [])], arrival)
                think = 0
            else:
                think = round(row["delay"] * MS)
            turn = Turn(output, think, prompt_tokens=tokens, hash_ids=hash_ids_of(hash_ids))
        except KeyError as error:
            raise GapscopeError(f"{place(path, data, number)}: {_lacks(error.args[0])}") from None
        except (TypeError, AttributeError, OverflowError):
            raise GapscopeError(
                f"{place(path, data, number)}: expected an object with whole numbers input_length and output_length, "
                "a list hash_ids of whole numbers, and timestamp or delay in milliseconds."
            ) from None
        if type(tokens) is not int or type(output) is not int or tokens < 1 or output < 1 or think < 0:
            raise GapscopeError(
                f"{place(path, data, number)}: input_length={tokens!r}, output_length={output!r}, "
                f"delay={think / MS:g} ms; expected whole numbers of at least 1 and a delay of at least 0."
            )
        play.conversations[0].turns.append(turn)
        lengths.append(tokens)
        counts.append(len(hash_ids))
    if not plays:
        raise GapscopeError(f"{path}: an empty trace; expected one JSON object per line.")
    block = block_tokens(path, np.array(lengths, np.int64), np.array(counts, np.int64))
    return Trace(name_of(path), "mooncake", "", list(plays.values()), block)


def hash_ids_of(values: list[int]) -> array[int]:
    """Hash ids side by side; those that need the 64th bit come out negative, which names them as well."""
    try:
        return array("q", values)
    except OverflowError:
        return array("q", array("Q", values).tobytes())


def _lacks(field: str) -> str:
    if field == "delay":
        return "a later turn of its session without delay; expected milliseconds after the previous response."
    return f"{field} is missing; expected input_length, output_length and hash_ids in every line."


def block_tokens(path: Path, lengths: np.ndarray, counts: np.ndarray) -> int:
    """The block size that explains every ``hash_ids``: one id per block, the last block full or not.

    Raises:
        GapscopeError: no size explains all of them, or several do and none is a power of two.
    """
    for last_is_partial in (True, False):
        if last_is_partial:  # len = ceil(tokens / size)
            if not counts.all():
                continue
            low = int((-(-lengths // counts)).max())
            several = counts > 1
            high = int(((lengths[several] - 1) // (counts[several] - 1)).min()) if several.any() else 1 << 62
        else:  # len = floor(tokens / size)
            low = int((lengths // (counts + 1)).max()) + 1
            some = counts > 0
            high = int((lengths[some] // counts[some]).min()) if some.any() else 1 << 62
        if low > high:
            continue
        power = 1 << (low - 1).bit_length()
        if low == high or power <= high:
            return low if low == high else power
    raise GapscopeError(
        f"{path}: the numbers of hash_ids fit no single block size; expected one id per block of the prompt "
        "(input_length / block size, rounded up or down, alike in every line)."
    )
