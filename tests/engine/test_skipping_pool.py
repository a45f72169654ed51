"""The prefix tree and the pool of runs, by hand."""

from array import array

from engine.serving.skipping.pool import RunPool
from engine.serving.skipping.prefix_tree import PrefixTree


def keys(*values):
    return array("q", values)


class Held:
    """A request's hold on a pool, with its path in a tree."""

    def __init__(self, pool, tree, *values):
        self.pool, self.path = pool, tree.path(keys(*values))
        self.runs, self.end = [], 0

    def compute(self, end):
        """Take and register the blocks up to position ``end``; returns how many were copies."""
        self.pool.take(end - self.end)
        copies = 0
        for node in self.path:
            start, stop = max(node.start, self.end), min(node.end, end)
            if start < stop:
                copies += self.pool.register(self.runs, node, start, stop)
        self.end = end
        return copies

    def hit(self, limit=1 << 30):
        self.runs, self.end, _ = self.pool.match(self.path, limit, lambda node: None)
        self.pool.reference(self.runs)
        return self.end

    def release(self, now_ns=0):
        self.pool.release(self.runs, self.end, now_ns)


def made(size=100):
    pool = RunPool(size, record=True)
    return pool, PrefixTree(pool.split_node)


def spans(path):
    return [(node.start, node.end) for node in path]


def lost(pool):
    """Keys in the order of their eviction."""
    out = []
    for row, content in enumerate(pool.eviction_keys):
        end, count = pool.eviction_sources[3 * row + 1], pool.evictions[2 * row + 1]
        out += list(content[end - count : end])[::-1]
    return out


def live(path):
    """Marks a path as in use, so that its last node stays as it is."""
    path[-1].ends += 1
    return path


def test_paths_share_what_prompts_share_and_nodes_are_cut_where_they_part():
    _, tree = made()
    assert spans(live(tree.path(keys(1, 2, 3, 4)))) == [(0, 4)]
    assert spans(live(tree.path(keys(1, 2, 3, 4, 5, 6)))) == [(0, 4), (4, 6)]
    assert tree.splits == 0
    assert spans(tree.path(keys(1, 2, 9))) == [(0, 2), (2, 3)]
    assert tree.splits == 1
    assert spans(tree.path(keys(1, 2, 3, 4, 5, 6))) == [(0, 2), (2, 4), (4, 6)]
    assert spans(tree.path(keys(1, 2, 3, 4, 5))) == [(0, 2), (2, 4), (4, 5)]  # ends half-way: cut as well
    assert spans(tree.path(keys(1, 2, 3, 8, 5, 6))) == [(0, 2), (2, 3), (3, 6)]
    assert spans(tree.path(keys(7))) == [(0, 1)]
    assert tree.path(keys()) == []


def test_a_leaf_grows_unless_a_path_in_use_ends_there():
    _, tree = made()
    first = live(tree.path(keys(1, 2)))
    assert spans(tree.path(keys(1, 2, 3))) == [(0, 2), (2, 3)]
    assert spans(tree.path(keys(1, 2, 3, 4, 5))) == [(0, 2), (2, 5)]
    assert (spans(first), tree.splits) == ([(0, 2)], 0)
    assert spans(tree.path(keys(1, 2, 3, 4, 6))) == [(0, 2), (2, 4), (4, 5)]
    assert tree.splits == 1


def test_a_cut_leaves_the_end_of_a_path_at_the_end():
    _, tree = made()
    live(tree.path(keys(1, 2, 3, 4)))
    tree.path(keys(1, 2))
    assert [node.ends for node in tree.path(keys(1, 2, 3, 4))] == [0, 1]


def test_equal_first_keys_do_not_make_equal_nodes():
    _, tree = made()
    first = tree.path(keys(1, 2, 3))
    second = tree.path(keys(1, 5, 3))
    assert first[0].keys[: first[0].end].tolist() == [1]
    assert (spans(second), second[-1].keys.tolist()) == ([(0, 1), (1, 3)], [1, 5, 3])


def test_a_hit_in_the_middle_of_a_free_run_leaves_the_tail_to_be_taken_first():
    pool, tree = made(10)
    first = Held(pool, tree, 1, 2, 3, 4, 5, 6)
    first.compute(6)
    first.release(now_ns=7)
    assert (pool.free, pool.blank) == (10, 4)
    second = Held(pool, tree, 1, 2, 3, 4, 5, 6)
    assert second.hit(limit=2) == 2
    assert pool.free == 8
    pool.take(6)
    assert lost(pool) == [6, 5]
    second.release(now_ns=9)
    pool.take(3)
    assert lost(pool) == [6, 5, 4, 3, 2]
    assert pool.eviction_sources[2::3] == [7, 7, 9]


def test_a_run_that_is_cut_while_held_is_released_whole():
    pool, tree = made(10)
    first = Held(pool, tree, 1, 2, 3, 4, 5)
    first.compute(5)
    second = Held(pool, tree, 1, 2, 3, 4, 5)
    assert second.hit(limit=3) == 3
    third = Held(pool, tree, 1, 2, 3, 4, 5)
    assert third.hit(limit=1) == 1
    first.release()
    assert pool.free == 7  # 4 and 5 are free, the others held
    second.release()
    assert pool.free == 9
    third.release()
    pool.take(10)
    assert lost(pool) == [5, 4, 3, 2, 1]


def test_the_first_copy_serves_hits_and_each_copy_is_evicted_for_itself():
    pool, tree = made(6)
    first, second = Held(pool, tree, 1, 2), Held(pool, tree, 1, 2)
    assert first.compute(2) == 0
    assert second.compute(2) == 2  # the same content once more
    second.release(now_ns=1)
    third = Held(pool, tree, 1, 2)
    assert third.hit() == 2
    assert pool.free == 4  # it shares the first copy, which is held
    third.release(now_ns=2)
    first.release(now_ns=3)
    pool.take(6)
    assert lost(pool) == [2, 1, 2, 1]
    assert pool.kept == [
        6,
        7,
    ]  # four blocks were computed and two were blank; then the second copy went while the first was still there
    assert Held(pool, tree, 1, 2).hit() == 0


def test_a_node_cut_in_two_shares_out_its_runs():
    pool, tree = made(10)
    first = Held(pool, tree, 1, 2, 3, 4)
    first.compute(4)
    first.release()
    assert Held(pool, tree, 1, 2, 7).hit() == 2
    again = Held(pool, tree, 1, 2, 3, 4)
    assert again.hit() == 4
    assert [(run.start, run.end, run.references) for run in again.runs] == [(0, 2, 2), (2, 4, 1)]
