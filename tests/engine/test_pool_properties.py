"""The block pool against a list of blocks in the order in which they would be taken, over any sequence of uses."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from engine.serving.block_pool import BlockPool


@dataclass
class NaivePool:
    """What each block holds and who references it; the next to be taken first in ``free``."""

    free: list[int]
    content: dict[int, int] = field(default_factory=dict)
    holders: dict[int, int] = field(default_factory=dict)  # block -> references
    registered: list[int] = field(default_factory=list)  # blocks with content, in order of registration

    def take(self, count: int) -> tuple[list[int], list[int]]:
        taken, self.free = self.free[:count], self.free[count:]
        lost = [self.content.pop(block) for block in taken if block in self.content]
        self.registered = [block for block in self.registered if block not in taken]
        self.holders |= dict.fromkeys(taken, 1)
        return taken, lost

    def let_go(self, blocks: list[int]) -> None:
        for block in blocks:
            self.holders[block] -= 1
        gone = [block for block in blocks if not self.holders[block]]
        for block in gone:
            del self.holders[block]
        blank = [block for block in gone if block not in self.content]
        kept = [block for block in gone if block in self.content]
        self.free = blank[::-1] + self.free + kept[::-1]

    def find(self, key: int) -> int | None:
        return next((block for block in self.registered if self.content[block] == key), None)


USES = (["start"], ["start", "grow", "fill"], ["start", "grow", "fill", "end"], ["grow"], ["fill"], ["end"])
steps = st.lists(st.tuples(st.sampled_from(USES), st.integers(0, 1), st.integers(0, 6)), max_size=20).map(
    lambda found: [(what, which, much) for uses, which, much in found for what in uses]
)
"""What is done, by which of the requests (they share two contents), with how many blocks."""


@given(size=st.integers(1, 12), steps=steps)
def test_referenced_and_free_are_the_pool_and_content_lies_on_its_blocks(
    size: int, steps: list[tuple[str, int, int]]
) -> None:
    pool, naive = BlockPool(size), NaivePool(list(range(size)))
    requests: list[tuple[int, list[int]]] = []  # what its content is called, and its blocks
    for now, (what, which, much) in enumerate(steps):
        if what == "start":  # a prefix of earlier content is hit, and the rest is taken
            hits: list[int] = []
            for position in range(much):
                block = pool.find(10 * which + position)
                assert block == naive.find(10 * which + position)
                if block is None:
                    break
                hits.append(block)
            pool.reference(hits)
            for block in hits:
                naive.holders[block] = naive.holders.get(block, 0) + 1
            naive.free = [block for block in naive.free if block not in hits]
            requests.append((which, hits))
        elif requests and what == "grow" and much <= pool.num_free:
            _, blocks = requests[which % len(requests)]
            taken, evicted = pool.take(much)
            assert (taken, [one.key for one in evicted]) == naive.take(much)
            blocks += taken
        elif requests and what == "fill":
            name, blocks = requests[which % len(requests)]
            for position, block in enumerate(blocks[:much]):
                if block not in naive.content:
                    pool.register(block, 10 * name + position)
                    naive.content[block] = 10 * name + position
                    naive.registered.append(block)
        elif requests and what == "end":
            _, blocks = requests.pop(which % len(requests))
            pool.release(blocks, now)
            naive.let_go(blocks)

        assert pool.num_referenced + pool.num_free == size
        assert pool.num_referenced == len(naive.holders)
        assert [block for block in range(size) if pool.is_free(block)] == sorted(naive.free)
        assert pool.num_keys == len(set(naive.content.values()))
        for key in set(naive.content.values()):
            found = pool.find(key)
            assert found is not None
            assert naive.content[found] == key
        pool.check_integrity([blocks for _, blocks in requests])


@given(size=st.integers(1, 8), counts=st.lists(st.integers(1, 3), max_size=6))
def test_what_is_let_go_is_nobodys_until_it_is_taken_again(size: int, counts: list[int]) -> None:
    pool = BlockPool(size)
    held: list[list[int]] = []
    for now, count in enumerate(counts):
        if count <= pool.num_free:
            taken, _ = pool.take(count)
            assert not {block for blocks in held for block in blocks} & set(taken)
            held.append(taken)
        elif held:
            gone = held.pop(0)
            pool.release(gone, now)
            assert all(pool.is_free(block) for block in gone)
        assert not any(pool.is_free(block) for blocks in held for block in blocks)
