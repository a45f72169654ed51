"""What the blocks of a conversation hold: names under which a prefix cache finds them again.

A block is named by the block before it and by the slices of content in it; each distinct name gets a small whole
number, its *key*. So two blocks have one key exactly when they hold the same tokens after the same prefix. The keys of
a conversation grow as one list: the keys of turn k are a prefix of it, and a fork starts from its parent's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.errors import GapscopeError
from engine.traces.tree import Conversation, Trace, Turn

Slice = tuple[str, int, int]  # content, first token, tokens
MASK = (1 << 64) - 1


def output_content(conversation_id: str, turn_index: int) -> str:
    """Name of what a turn generates: nobody recorded the tokens, but equal source turns say the same."""
    return f"out:{conversation_id}:{turn_index}"


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
        self.chains: list[list[int]] = []
        self.marks: dict[int, Mark] = {}


class BlockKeys:
    """The keys of everything that is played in one replay: 1, 2, 3, ... in the order of first use."""

    def __init__(self, trace: Trace, block_size: int) -> None:
        self.block_size = block_size
        self._known: dict[tuple[int, str | int | tuple[Slice, ...], int], int] = {}
        self._hash_block = trace.hash_block_tokens
        if self._hash_block is not None and (self._hash_block < block_size or self._hash_block % block_size):
            raise GapscopeError(
                f"Trace {trace.name} names blocks of {self._hash_block} tokens but block_size={block_size}: expected "
                "the same number or one that divides it."
            )

    def walk(self, conversation: Conversation, base: Mark | None, incarnation: int) -> Walk:
        """The conversation from ``base`` on (None: from nothing).

        Different incarnations share no block, not even of a common system prompt.
        """
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
            walk.keys.append(keys)
            walk.chains.append(keys)
            output = output_content(conversation.conversation_id, index)
            self._append(output, turn.output_tokens, root, keys, partial)
            tokens += turn.output_tokens
            if turn.spawn:
                walk.marks[index] = Mark(tokens, keys.copy(), tuple(partial))
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
        if self._hash_block is None:
            raise GapscopeError("The trace names blocks by hash ids but not how many tokens one of them holds.")
        walk, known, size = Walk(), self._known, self.block_size
        offsets = range(0, self._hash_block, size)
        so_far: tuple[int, ...] = ()
        keys: list[int] = []
        for turn in turns:
            if turn.hash_ids is None or turn.prompt_tokens is None:
                raise GapscopeError("A conversation of the trace names the blocks of some turns only.")
            ids = turn.hash_ids
            if ids[: len(so_far)] == so_far:
                new = ids[len(so_far) :]
            else:  # not a longer prompt of the same beginning: told apart from the first block on
                new, keys = ids, []
            parent = keys[-1] if keys else root
            for hash_id in new:
                for offset in offsets:
                    parent = known.setdefault((parent, hash_id, offset), len(known) + 1)
                    keys.append(parent)
            so_far = ids
            walk.prompt_tokens.append(turn.prompt_tokens)
            walk.keys.append(keys[: turn.prompt_tokens // size])
            walk.chains.append(keys)
        return walk

    def hashes(self) -> npt.NDArray[np.uint64]:
        """A 64-bit hash of the content of each key and of all before it; [0] is unused.

        Unlike keys, hashes are the same in every replay of the same content.
        """
        contents: dict[str | int, int] = {}
        out = [0]
        for parent, content, offset in self._known:
            above = out[parent] if parent > 0 else -parent
            if isinstance(content, tuple):
                own = 0
                for name, first, tokens in content:
                    own = _mix(own, _content_hash(contents, name) + first * 0x9E3779B97F4A7C15 + tokens)
            else:
                own = _content_hash(contents, content) + offset * 0x9E3779B97F4A7C15
            out.append(_mix(above, own))
        return np.array(out, np.uint64)

    def parents(self) -> npt.NDArray[np.int64]:
        """The key of the block before each key, 0 or less for the first block of a prompt; [0] is unused."""
        return np.array([0, *(parent for parent, _, _ in self._known)], np.int64)


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
