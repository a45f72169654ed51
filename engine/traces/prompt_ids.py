"""The hash ids of a prompt, held once for all prompts that begin alike.

A prompt of a conversation mostly is the prompt before it and some more, so the prompts of a conversation are beginnings
of one array, that of the longest.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from engine.traces.tree import Trace


class PromptIds(Sequence[int]):
    """The first ``length`` numbers of ``held``, all of it by default; whoever else holds it may append to it."""

    __slots__ = ("held", "length")

    def __init__(self, held: array[int], length: int | None = None) -> None:
        self.held = held
        self.length = len(held) if length is None else length

    def then(self, ids: array[int]) -> PromptIds:
        """The prompt ``ids``, which comes after this one: in the same array if it goes on from all or lies in it."""
        held, length = self.held, len(self.held)
        if ids[:length] == held:
            held += ids[length:]
            return PromptIds(held, len(ids))
        return PromptIds(held, len(ids)) if held[: len(ids)] == ids else PromptIds(ids)

    def grown(self, kept: int, more: bytes | memoryview) -> PromptIds:
        """The first ``kept`` ids of this prompt, and ``more``: in the same array if nothing else goes on there."""
        held = self.held
        if len(more):
            held = held if kept == len(held) else held[:kept]
            held.frombytes(more)
        return PromptIds(held, kept + len(more) // held.itemsize)

    def common(self, other: Sequence[int]) -> int:
        """How many ids two prompts have in common from the beginning on."""
        length = min(self.length, len(other))
        if isinstance(other, PromptIds) and other.held is self.held:
            return length
        differ = np.flatnonzero(np.asarray(self)[:length] != np.asarray(other, np.int64)[:length])
        return int(differ[0]) if len(differ) else length

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[np.int64]:
        """The ids without a copy: to be dropped before the next prompt is appended."""
        ids = np.frombuffer(self.held, np.int64, self.length) if self.length else np.empty(0, np.int64)
        return ids.astype(dtype or np.int64, copy=bool(copy))

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> array[int]: ...
    def __getitem__(self, at: int | slice) -> int | array[int]:
        if isinstance(at, slice):
            first, last, step = at.indices(self.length)
            return self.held[first:last:step] if step > 0 else self.held[: self.length][at]
        if not -self.length <= at < self.length:
            raise IndexError(at)
        return self.held[at if at >= 0 else at + self.length]

    def __iter__(self) -> Iterator[int]:
        return iter(self[:])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (PromptIds, array, tuple)):
            return len(other) == self.length and self.common(other) == self.length
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # what it holds may be appended to

    def __repr__(self) -> str:
        return f"PromptIds({self[:].tolist()})"


def shared(ids: Sequence[int]) -> PromptIds:
    """Hash ids in the form that others can share."""
    return ids if isinstance(ids, PromptIds) else PromptIds(array("q", ids))


def begins_with(ids: Sequence[int], before: Sequence[int]) -> bool:
    """Whether a prompt begins with another."""
    length = len(before)
    if isinstance(ids, PromptIds) and isinstance(before, PromptIds) and ids.held is before.held:
        return length <= len(ids)
    return ids[:length] == before


def share_beginnings(trace: Trace) -> None:
    """Let the prompts of each conversation, and of those that it spawned, be beginnings of one array where they are."""
    for play in trace.plays:
        turns = {c.conversation_id: c.turns for c in play.conversations} if len(play.conversations) > 1 else {}
        for conversation in play.conversations:
            if isinstance(conversation.turns[-1].hash_ids, PromptIds):
                continue  # they were read like that
            before = None
            if conversation.parent is not None and conversation.after_turn is not None:
                before = turns[conversation.parent][conversation.after_turn].hash_ids
            for turn in conversation.turns:
                ids = turn.hash_ids
                if isinstance(ids, array):
                    turn.hash_ids = before.then(ids) if isinstance(before, PromptIds) else PromptIds(ids)
                before = turn.hash_ids
