"""Block keys of traces that name the blocks of their prompts themselves, where the names can be used as they are."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from engine.errors import GapscopeError
from engine.traces.prompt_ids import PromptIds
from engine.traces.tree import Conversation, Trace
from engine.workload.content import NO_KEY, BlockKeys, Hashes, InternedKeys, Ints, Mark, Walk

LARGEST_ID = 1 << 26
"""Larger hash ids are numbered anew, so that a column by id fits into memory."""


def block_keys_of(trace: Trace, block_size: int) -> BlockKeys:
    """The cheapest way of naming the blocks of ``trace`` that is right for it.

    Raises:
        GapscopeError: blocks of the trace cannot be divided into blocks of ``block_size``, or only some turns have
            hash ids.
    """
    has_ids = [turn.hash_ids is not None for play in trace.plays for talk in play.conversations for turn in talk.turns]
    named = sum(has_ids)
    if not named:
        return InternedKeys(block_size)
    if named < len(has_ids) or trace.hash_block_tokens is None:
        raise GapscopeError(
            f"Trace {trace.name} names the blocks of {named} of its {len(has_ids)} turns: expected hash ids for all of "
            "them, and their block size, or for none."
        )
    hash_block = trace.hash_block_tokens
    if hash_block % block_size:
        raise GapscopeError(
            f"Trace {trace.name} names blocks of {hash_block} tokens but block_size={block_size}: expected the same "
            "number or one that divides it."
        )
    before = _before(trace)
    return InternedKeys(block_size, hash_block) if before is None else ChainedHashIds(before, block_size, hash_block)


class ChainedHashIds:
    """Uses hash ids as keys: each always follows the same one, so it names everything before it as well.

    A hash id of several blocks stands for as many consecutive keys. ``before`` has the id before each id, -1 where it
    is the first of a prompt. What outputs hold is unknown, so keys end with the prompt.
    """

    def __init__(self, before: Ints, block_size: int, hash_block: int) -> None:
        self.block_size = block_size
        self._before = before
        self._factor = hash_block // block_size
        self._span = len(before) * self._factor  # keys of one incarnation

    def walk(self, conversation: Conversation, base: Mark | None, incarnation: int) -> Walk:
        """See :class:`BlockKeys`; what a conversation was forked from is in its ids already."""
        walk, block_size, factor, shift = Walk(), self.block_size, self._factor, incarnation * self._span
        last: Sequence[int] | None = None
        held: Sequence[int]
        chain: Sequence[int] = ()
        for turn in conversation.turns:
            ids, tokens = turn.hash_ids, turn.prompt_tokens or 0
            if isinstance(ids, PromptIds):
                held, length = ids.held, ids.length
            else:
                held = () if ids is None else ids
                length = len(held)
            if held is not last:
                last, chain = held, held
                if factor > 1 or shift:
                    first = np.asarray(held, np.int64) * factor + shift
                    chain = array("q", (first[:, None] + np.arange(factor)).tobytes())
            whole = tokens // block_size
            if whole > length * factor:
                whole = length * factor
            walk.prompt_tokens.append(tokens)
            walk.keys.append(chain if len(chain) == whole else chain[:whole])
            walk.chains.append(chain)
        return walk

    def hashes(self, keys: Ints) -> Hashes:
        """See :class:`BlockKeys`: the trace's own ids, or parts of them."""
        return keys.view(np.uint64)

    def parents(self, keys: Ints) -> Ints:
        """See :class:`BlockKeys`."""
        incarnation, key = np.divmod(keys, self._span)
        before = self._before[key // self._factor]
        outer = np.where(before >= 0, incarnation * self._span + (before + 1) * self._factor - 1, NO_KEY)
        return np.where(key % self._factor > 0, keys - 1, outer)


def _before(trace: Trace) -> Ints | None:
    """The id before each hash id of the trace; None where ids are large or have more than one before them."""
    added = array("q")  # what each prompt appends to the one before it
    lengths: list[int] = []
    heads: list[int] = []  # the id that this follows
    for play in trace.plays:
        for conversation in play.conversations:
            so_far: Sequence[int] = ()
            for turn in conversation.turns:
                ids = turn.hash_ids
                held = ids.held if isinstance(ids, PromptIds) else ids or ()
                if held is so_far:
                    continue
                longer = len(so_far) > 0 and held[: len(so_far)] == so_far
                new = held[len(so_far) :] if longer else held
                if len(new):
                    added.extend(new)
                    lengths.append(len(new))
                    heads.append(so_far[-1] if longer else -1)
                so_far = held
    ids_added = np.frombuffer(added, np.int64)
    if not len(ids_added) or ids_added.min() < 0 or ids_added.max() > LARGEST_ID:
        return None
    previous = np.concatenate([[-1], ids_added[:-1]])
    previous[np.cumsum(lengths) - lengths] = heads
    before = np.full(int(ids_added.max()) + 1, -1, np.int64)
    before[ids_added] = previous
    return before if (before[ids_added] == previous).all() else None
