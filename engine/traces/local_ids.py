"""Hash ids that mean something inside one play only: told apart between plays, and made to name their whole prefix."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.traces.prompt_ids import PromptIds

Ints = npt.NDArray[np.int64]
SPREAD = 8
"""Ids that spread further than this many times their number are numbered anew before anything is counted by id."""


class LocalIds:
    """Numbers the blocks of one play after the other, from 0 on."""

    def __init__(self) -> None:
        self._next = 0

    def renumber(self, prompts: Sequence[Sequence[int]]) -> list[PromptIds]:
        """The hash ids of the prompts of one play, numbered on from those of the plays before.

        Two new ids are equal exactly when the ids and all ids before them in their prompts are. So the last id that
        two prompts have in common at one place tells how long their common beginning is. Prompts that another one
        begins with share its array.
        """
        lengths = np.array([len(ids) for ids in prompts], np.int64)
        flat = np.concatenate([*(np.asarray(ids, np.int64) for ids in prompts), np.empty(0, np.int64)])
        if not len(flat):
            return [PromptIds(array("q")) for _ in prompts]
        codes = _dense(flat)
        first = np.cumsum(lengths) - lengths
        before = np.concatenate([[-1], codes[:-1]])
        before[first[lengths > 0]] = -1
        numbers = codes if _follow_one(codes, before) else _interned(codes, first, lengths)
        out = _shared(numbers, first.tolist(), lengths.tolist(), self._next)
        self._next += int(numbers.max()) + 1
        return out


def _shared(numbers: Ints, first: Sequence[int], lengths: Sequence[int], offset: int) -> list[PromptIds]:
    """Prompts of ``numbers + offset``, each a beginning of the longest that begins with it."""
    held: list[array[int]] = []
    owner = np.full(int(numbers.max()) + 1, -1, np.int64)  # by number: in which array it is; its place there is one
    out: dict[int, PromptIds] = {}
    for prompt in sorted(range(len(lengths)), key=lambda prompt: -lengths[prompt]):
        at, length = first[prompt], lengths[prompt]
        found = int(owner[numbers[at + length - 1]]) if length else -1
        if found < 0:
            found, own = len(held), numbers[at : at + length]
            held.append(array("q", (own + offset).tobytes()))
            owner[own[owner[own] < 0]] = found
        out[prompt] = PromptIds(held[found], length)
    return [out[prompt] for prompt in range(len(lengths))]


def _dense(ids: Ints) -> Ints:
    low, high = int(ids.min()), int(ids.max())
    if high - low < SPREAD * len(ids):
        return ids - low
    codes: Ints = np.unique(ids, return_inverse=True)[1]
    return codes


def _follow_one(codes: Ints, before: Ints) -> bool:
    """Whether each id always follows the same one, and so names all before it."""
    expected = np.empty(int(codes.max()) + 1, np.int64)
    expected[codes] = before
    return bool((expected[codes] == before).all())


def _interned(codes: Ints, first: Ints, lengths: Ints) -> Ints:
    known: dict[tuple[int, int], int] = {}
    out = np.empty(len(codes), np.int64)
    last = codes[:0]
    before = out[:0]
    for at, length in zip(first.tolist(), lengths.tolist(), strict=True):
        ids, numbers = codes[at : at + length], out[at : at + length]
        short = min(len(last), length)
        differs = np.flatnonzero(last[:short] != ids[:short])
        shared = int(differs[0]) if len(differs) else short
        numbers[:shared] = before[:shared]
        parent = int(numbers[shared - 1]) if shared else -1
        for position, code in enumerate(ids[shared:].tolist(), shared):
            parent = known.setdefault((parent, code), len(known))
            numbers[position] = parent
        last, before = ids, numbers
    return out
