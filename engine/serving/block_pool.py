"""KV blocks of one replica: reference counts, the free list and the content that blocks hold.

A block is *referenced* (some running request holds it) or *free*; a free block keeps its content and can be hit
until it is taken for something else. Free blocks are taken from the front of the free list, so its order is the
eviction order: least recently released first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Eviction(NamedTuple):
    """Content that left the pool because its block was taken; ``released_ns`` is when the block was let go."""

    key: int
    released_ns: int


class BlockPool:
    """``size`` blocks, numbered from 0, that all start free and empty.

    Content is named by keys. Several blocks may hold one key (two requests computed it at the same time): the first
    registered serves hits, and each is evicted for itself.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._references = [0] * size
        self._key: list[int | None] = [None] * size
        self._released_ns = [-1] * size
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(size))
        self._holders: dict[int, dict[int, None]] = {}  # key -> blocks, in order of registration

    def copy(self) -> BlockPool:
        """Another pool that stands where this one stands."""
        twin = BlockPool(0)
        twin.size = self.size
        twin._references = self._references.copy()
        twin._key = self._key.copy()
        twin._released_ns = self._released_ns.copy()
        twin._free = self._free.copy()
        twin._holders = {key: blocks.copy() for key, blocks in self._holders.items()}
        return twin

    @property
    def num_free(self) -> int:
        """Blocks that nobody references, with content or without."""
        return len(self._free)

    @property
    def num_referenced(self) -> int:
        """Blocks that at least one request holds."""
        return self.size - len(self._free)

    @property
    def num_keys(self) -> int:
        """Distinct content held, referenced or free."""
        return len(self._holders)

    def is_free(self, block: int) -> bool:
        """Whether nobody references the block."""
        return block in self._free

    def find(self, key: int) -> int | None:
        """The block that serves hits on ``key``; None if no block holds it."""
        holders = self._holders.get(key)
        return next(iter(holders)) if holders else None

    def reference(self, blocks: Iterable[int]) -> None:
        """Add a reference to blocks found in the pool; they leave the free list."""
        for block in blocks:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1

    def take(self, count: int) -> tuple[list[int], list[Eviction]]:
        """``count`` blocks from the front of the free list, and the content they lost, in that order."""
        if count > len(self._free):
            raise ValueError(f"block pool: asked {count}, free {len(self._free)} of {self.size}")
        taken: list[int] = []
        evicted: list[Eviction] = []
        for _ in range(count):
            block, _none = self._free.popitem(last=False)
            self._references[block] = 1
            key = self._key[block]
            if key is not None:
                evicted.append(Eviction(key, self._released_ns[block]))
                self._forget(block, key)
            taken.append(block)
        return taken, evicted

    def grow(self, count: int) -> None:
        """Add empty, free blocks, the next to be taken."""
        for block in range(self.size, self.size + count):
            self._references.append(0)
            self._key.append(None)
            self._released_ns.append(-1)
            self._free[block] = None
            self._free.move_to_end(block, last=False)
        self.size += count

    def register(self, block: int, key: int) -> None:
        """Say what a referenced block holds from now on."""
        if self._key[block] is not None or self._references[block] == 0:
            raise ValueError(f"block pool: block {block} is not an empty, referenced block")
        self._key[block] = key
        self._holders.setdefault(key, {})[block] = None

    def release(self, blocks: Sequence[int], now_ns: int) -> None:
        """Drop one reference of each of a request's blocks, given in the order of its tokens.

        They go back last first, so that a prefix outlives what was built on it. Blocks without content are the
        next to be taken; those with content queue at the end.
        """
        empty: list[int] = []
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] > 0:
                continue
            self._released_ns[block] = now_ns
            self._free[block] = None
            if self._key[block] is None:
                empty.append(block)
        for block in reversed(empty):
            self._free.move_to_end(block, last=False)

    def check_integrity(self, held: Iterable[Sequence[int]]) -> None:
        """Check that the pool agrees with itself and with the block tables of everybody who holds blocks.

        Raises:
            AssertionError: a count, the free list or the content index is wrong (a defect of the program).
        """
        counts = [0] * self.size
        for blocks in held:
            assert len(set(blocks)) == len(blocks), f"a request holds a block twice: {blocks}"
            for block in blocks:
                counts[block] += 1
        assert counts == self._references, "reference counts differ from the block tables"
        unreferenced = {block for block, count in enumerate(counts) if count == 0}
        assert unreferenced == set(self._free), "the free list is not the set of unreferenced blocks"
        indexed = {block: key for key, holders in self._holders.items() for block in holders}
        assert all(self._holders.values()), "a key without a block"
        assert indexed == {block: key for block, key in enumerate(self._key) if key is not None}, (
            "the content index differs from the blocks' keys"
        )

    def _forget(self, block: int, key: int) -> None:
        holders = self._holders[key]
        del holders[block]
        if not holders:
            del self._holders[key]
        self._key[block] = None
