"""What the blocks of a conversation hold: names under which a prefix cache finds them again.

Each block has a whole number, its *key*: two blocks have one key exactly when they hold the same tokens after the same
prefix. The keys of a conversation grow as one list: those of turn k are a prefix of it, and a fork starts from its
parent's.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine.traces.content import output_content
from engine.traces.prompt_ids import begins_with
from engine.traces.tree import Conversation, Turn

Slice = tuple[str, int, int]  # content, first token, tokens
Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
NO_KEY = -(1 << 63)
"""In columns of keys: there is no such block."""
MASK = (1 << 64) - 1
ODD = 0x9E3779B97F4A7C15


class Mark:
    """Where a context ended: its tokens, the keys of its full blocks, and what the block it broke off in holds."""

    __slots__ = ("keys", "partial", "tokens")

    def __init__(self, tokens: int, keys: list[int], partial: tuple[Slice, ...]) -> None:
        self.tokens = tokens
        self.keys = keys
        self.partial = partial


class Walk:
    """One conversation as it is played, turn by turn.

    ``prompt_tokens[k]`` is the length of the prompt of turn k; ``keys[k]`` begin with the keys of its full blocks, and
    what follows names the blocks that its output completes. ``chains[k]`` is the list that these keys are taken from,
    the same for as many turns as possible. ``marks`` has the ends of the turns that children fork from.
    """

    __slots__ = ("chains", "keys", "marks", "prompt_tokens")

    def __init__(self) -> None:
        self.prompt_tokens: list[int] = []
        self.keys: list[Sequence[int]] = []
        self.chains: list[Sequence[int]] = []
        self.marks: dict[int, Mark] = {}


class BlockKeys(Protocol):
    """One way of naming blocks. Keys are never negative."""

    block_size: int

    def walk(self, conversation: Conversation, base: Mark | None, incarnation: int) -> Walk:
        """The conversation from ``base`` on (None: from nothing).

        Different incarnations share no block, not even of a common system prompt.
        """

    def hashes(self, keys: Ints) -> Hashes:
        """A 64-bit hash of the content of each block and of all before it, the same in every replay of a trace.

        A negative key (content that only one request can have) is its own hash, read as an unsigned number.
        """

    def parents(self, keys: Ints) -> Ints:
        """The key of the block before each; NO_KEY where a block is the first of its prompt."""


class InternedKeys:
    """Names a block by the block before it and the slices of content in it, and numbers the names from 1 on.

    ``hash_block`` is how many tokens a hash id of the trace stands for, where prompts are given by hash ids.
    """

    def __init__(self, block_size: int, hash_block: int | None = None) -> None:
        self.block_size = block_size
        self._hash_block = hash_block or block_size
        self._known: dict[tuple[int, str | int | tuple[Slice, ...], int], int] = {}
        self._hashes = np.zeros(1, np.uint64)  # by key; made when asked for

    def walk(self, conversation: Conversation, base: Mark | None, incarnation: int) -> Walk:
        """See :class:`BlockKeys`."""
        if conversation.turns[0].hash_ids is not None:
            return self._walk_hash_ids(conversation.turns, -incarnation)
        return self._walk_segments(conversation, base or Mark(0, [], ()), -incarnation)

    def _walk_segments(self, conversation: Conversation, base: Mark, root: int) -> Walk:
        walk, tokens, keys, partial = Walk(), base.tokens, list(base.keys), list(base.partial)
        for index, turn in enumerate(conversation.turns):
            for segment in turn.new_input:
                self._append(segment.content, segment.tokens, root, keys, partial)
                tokens += segment.tokens
            walk.prompt_tokens.append(tokens)
            output = output_content(conversation.conversation_id, index)
            self._append(output, turn.output_tokens, root, keys, partial)
            tokens += turn.output_tokens
            if turn.spawn:
                walk.marks[index] = Mark(tokens, keys.copy(), tuple(partial))
        walk.keys = walk.chains = [array("q", keys)] * len(conversation.turns)
        return walk

    def _append(self, content: str, tokens: int, root: int, keys: list[int], partial: list[Slice]) -> None:
        size, known, offset = self.block_size, self._known, 0
        parent = keys[-1] if keys else root
        if partial:
            missing = size - sum(part[2] for part in partial)
            offset = min(missing, tokens)
            partial.append((content, 0, offset))
            if offset < missing:
                return
            parent = known.setdefault((parent, tuple(partial), 0), len(known) + 1)
            keys.append(parent)
            partial.clear()
        while offset + size <= tokens:
            parent = known.setdefault((parent, content, offset), len(known) + 1)
            keys.append(parent)
            offset += size
        if offset < tokens:
            partial.append((content, offset, tokens - offset))

    def _walk_hash_ids(self, turns: list[Turn], root: int) -> Walk:
        walk, known, size = Walk(), self._known, self.block_size
        offsets = range(0, self._hash_block, size)
        so_far: Sequence[int] = ()
        keys: list[int] = []
        for turn in turns:
            assert turn.hash_ids is not None
            assert turn.prompt_tokens is not None
            ids = turn.hash_ids
            new = ids[len(so_far) :]
            if not begins_with(ids, so_far):
                new, keys = ids, []
            parent = keys[-1] if keys else root
            for hash_id in new:
                for offset in offsets:
                    parent = known.setdefault((parent, hash_id, offset), len(known) + 1)
                    keys.append(parent)
            so_far = ids
            walk.prompt_tokens.append(turn.prompt_tokens)
            walk.keys.append(array("q", keys[: turn.prompt_tokens // size]))
            walk.chains.append(keys)
        return walk

    def hashes(self, keys: Ints) -> Hashes:
        """See :class:`BlockKeys`."""
        if len(self._hashes) != len(self._known) + 1:
            self._hashes = self._hash_all()
        return np.where(keys >= 0, self._hashes[np.maximum(keys, 0)], keys.view(np.uint64))

    def _hash_all(self) -> Hashes:
        """The hash of each key, in order; that of 0 is no key's."""
        contents: dict[str | int, int] = {}
        out = [0]
        for parent, content, offset in self._known:
            above = out[parent] if parent > 0 else -parent
            if isinstance(content, tuple):
                own = 0
                for name, first, tokens in content:
                    own = _mix(own, _content_hash(contents, name) + first * ODD + tokens)
            else:
                own = _content_hash(contents, content) + offset * ODD
            out.append(_mix(above, own))
        return np.array(out, np.uint64)

    def parents(self, keys: Ints) -> Ints:
        """See :class:`BlockKeys`."""
        parents = np.array([0, *(parent for parent, _, _ in self._known)], np.int64)[keys]
        return np.where(parents > 0, parents, NO_KEY)


def _content_hash(seen: dict[str | int, int], content: str | int) -> int:
    found = seen.get(content)
    if found is None:
        digest = hashlib.blake2b(str(content).encode(), digest_size=8).digest()
        found = seen[content] = int.from_bytes(digest, "little")
    return found


def _mix(left: int, right: int) -> int:
    """Two 64-bit numbers to one, by the finishing steps of SplitMix64."""
    value = (left * 0xD1342543DE82EF95 + right + 1) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)
