"""The block pool by itself: what is taken next, what is found, what is forgotten."""

import pytest

from engine.serving.block_pool import BlockPool, Eviction


def filled(pool: BlockPool, keys: list[int | None], now_ns: int = 0) -> list[int]:
    """Blocks that one request takes and fills (None: leaves without content)."""
    blocks, _ = pool.take(len(keys))
    for block, key in zip(blocks, keys, strict=True):
        if key is not None:
            pool.register(block, key)
    return blocks


def test_prefix_outlives_what_was_built_on_it():
    pool = BlockPool(3)
    pool.release(filled(pool, [1, 2, 3]), now_ns=70)
    assert pool.take(3)[1] == [Eviction(3, 70), Eviction(2, 70), Eviction(1, 70)]


def test_blocks_without_content_are_taken_first():
    pool = BlockPool(4)
    early = filled(pool, [1])
    late = filled(pool, [2, None])  # blocks 1 and 2; block 3 was never used
    pool.release(early, 0)
    pool.release(late, 0)
    assert pool.take(4)[0] == [2, 3, 0, 1]


def test_several_blocks_without_content_go_back_last_first():
    pool = BlockPool(3)
    pool.release(filled(pool, [None, None, None]), 0)
    assert pool.take(3)[0] == [2, 1, 0]


def test_first_registered_serves_hits_and_each_is_evicted_for_itself():
    pool = BlockPool(2)
    first, second = filled(pool, [7]), filled(pool, [7])
    assert pool.find(7) == first[0]
    assert pool.num_keys == 1
    pool.release(first, 10)
    pool.release(second, 20)
    assert pool.take(1) == (first, [Eviction(7, 10)])
    assert pool.find(7) == second[0]
    assert pool.take(1) == (second, [Eviction(7, 20)])
    assert pool.find(7) is None
    assert pool.num_keys == 0


def test_shared_block_is_free_only_when_both_let_go():
    pool = BlockPool(2)
    blocks = filled(pool, [5])
    pool.reference(blocks)
    pool.release(blocks, 0)
    assert (pool.num_free, pool.num_referenced, pool.is_free(blocks[0])) == (1, 1, False)
    pool.release(blocks, 0)
    assert (pool.num_free, pool.is_free(blocks[0])) == (2, True)


def test_hit_moves_a_block_behind_those_released_since():
    pool = BlockPool(2)
    old, new = filled(pool, [1]), filled(pool, [2])
    pool.release(old, 0)
    pool.release(new, 1)
    pool.reference(old)
    pool.release(old, 2)
    assert [e.key for e in pool.take(2)[1]] == [2, 1]


def test_asking_for_more_than_is_free_says_the_numbers():
    pool = BlockPool(3)
    pool.take(1)
    with pytest.raises(ValueError, match="asked 3, free 2 of 3"):
        pool.take(3)


def test_registering_a_block_twice_is_a_defect():
    pool = BlockPool(1)
    blocks = filled(pool, [1])
    with pytest.raises(ValueError, match="block 0"):
        pool.register(blocks[0], 2)


def test_integrity_check_finds_a_block_table_that_disagrees():
    pool = BlockPool(3)
    blocks = filled(pool, [1, 2])
    pool.check_integrity([blocks])
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check_integrity([blocks[:1]])
