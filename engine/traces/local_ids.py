"""Hash ids that mean something inside one play only: told apart between plays, and made to name their whole prefix."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
SPREAD = 8
"""Ids that spread further than this many times their number are numbered anew before anything is counted by id."""


class LocalIds:
    """Numbers the blocks of one play after the other, from 0 on."""

    def __init__(self) -> None:
        self._next = 0

    def renumber(self, prompts: Sequence[array[int]]) -> list[array[int]]:
        """The hash ids of the prompts of one play, numbered on from those of the plays before.

        Two new ids are equal exactly when the ids and all ids before them in their prompts are. So the last id that
        two prompts have in common at one place tells how long their common beginning is.
        """
        lengths = np.array([len(ids) for ids in prompts], np.int64)
        flat = np.concatenate([*(np.frombuffer(ids, np.int64) for ids in prompts), np.empty(0, np.int64)])
        if not len(flat):
            return [array("q") for _ in prompts]
        codes = _dense(flat)
        first = np.cumsum(lengths) - lengths
        before = np.concatenate([[-1], codes[:-1]])
        before[first[lengths > 0]] = -1
        numbers = codes if _follow_one(codes, before) else _interned(codes, first, lengths)
        out = [array("q", (numbers[at : at + n] + self._next).tobytes()) for at, n in zip(first, lengths, strict=True)]
        self._next += int(numbers.max()) + 1
        return out


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
