"""Content hashes of the blocks that requests held, for whole columns of blocks at once, and what all tables share."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from engine.arrays import lists, numbers
from engine.replay.result import Ints, ReplayResult
from engine.serving.record import private_key
from engine.workload.content import NO_KEY, Hashes

LONG = 32
"""Stretches of more values than this are cheaper to copy one by one than to index value by value."""
_PRIVATE_STRIDE = private_key(0, 0) - private_key(1, 0)


def as_table(columns: dict[str, pa.Array]) -> pa.Table:
    """A table of named columns."""
    return pa.Table.from_arrays(list(columns.values()), names=list(columns))


def spans(first: Ints, counts: Ints) -> Ints:
    """``first[i], first[i] + 1, ...`` (``counts[i]`` numbers) for each i, one after the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(first - (ends - counts), counts)


def taken(values: Ints, first: Ints, counts: Ints) -> Ints:
    """``counts[i]`` of the values from ``first[i]`` on for each i, one after the other."""
    if counts.sum() <= LONG * len(counts):
        return values[spans(first, counts)]
    bounds = zip(first.tolist(), (first + counts).tolist(), strict=True)
    return np.concatenate([values[begin:end] for begin, end in bounds])


class Blocks:
    """Which block a request has at a position, and what its content is called in the tables.

    Content that only one request can have (nobody gave it a key) has a hash of its own in this replay: the server's
    private key, read as an unsigned number.
    """

    def __init__(self, result: ReplayResult) -> None:
        sent = result.client.sent
        chains: dict[int, int] = {}  # where each list of keys begins in the flat one
        arrays: list[Ints] = []
        begin, size = [], 0
        for conversation, turn in zip(sent.conversation, sent.turn, strict=True):
            chain = conversation.walk.chains[turn]
            at = chains.get(id(chain))
            if at is None:
                at = chains[id(chain)] = size
                arrays.append(np.array(chain, np.int64))
                size += len(chain)
            begin.append(at)
        self._flat = np.concatenate([*arrays, np.empty(0, np.int64)])
        self._begin = np.array(begin, np.int64)
        given = [len(c.walk.keys[t]) for c, t in zip(sent.conversation, sent.turn, strict=True)]
        self._given = np.array(given, np.int64)
        self._content = result.keys

    def keys(self, index: Ints, position: Ints) -> Ints:
        """Content keys of the blocks at these positions of these requests."""
        shared = position < self._given[index]
        if shared.all():
            return self._flat[self._begin[index] + position]
        out: Ints = private_key(0, 0) - index * _PRIVATE_STRIDE - position
        out[shared] = self._flat[self._begin[index[shared]] + position[shared]]
        return out

    def located(self, index: Ints, first: Ints, counts: Ints) -> tuple[Ints, Ints]:
        """Keys, and where in them the ``counts`` blocks of each of these requests from position ``first`` on begin."""
        if (first + counts <= self._given[index]).all():
            return self._flat if len(index) else self._flat[:0], self._begin[index] + first
        return self.keys(np.repeat(index, counts), spans(first, counts)), np.cumsum(counts) - counts

    def hashes(self, keys: Ints) -> Hashes:
        """Content hashes of keys."""
        return self._content.hashes(keys)

    def parents(self, keys: Ints) -> Ints:
        """Key of the block before each; NO_KEY where the block is the first of a prompt."""
        out = np.full(len(keys), NO_KEY, np.int64)
        shared = keys >= 0
        out[shared] = self._content.parents(keys[shared])
        private = ~shared
        index, position = np.divmod(private_key(0, 0) - keys[private], _PRIVATE_STRIDE)
        before = np.full(len(index), NO_KEY, np.int64)
        inner = position > 0
        before[inner] = self.keys(index[inner], position[inner] - 1)
        out[private] = before
        return out

    def lists(self, index: Ints, first: Ints, last: Ints) -> pa.ListArray:
        """For each row the hashes of the blocks ``first .. last - 1`` of the request ``index``."""
        counts = last - first
        keys = taken(*self.located(index, first, counts), counts)
        return lists(np.concatenate([[0], np.cumsum(counts)]), numbers(self.hashes(keys)))
