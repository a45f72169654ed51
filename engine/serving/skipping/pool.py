"""The KV pool of the skipping core: blocks in runs.

A :class:`Run` is a stretch of consecutive blocks of one prefix-tree node that were registered in order, are held by
the same requests and were released together. The free list of the block-by-block pool is then a count of blocks
without content (they are always taken first) followed by runs, least recently released first; a run gives up its
blocks from its tail. Which block it is never matters, only which content it holds and when it was let go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from engine.serving.skipping.prefix_tree import Keys, Node


class Run:
    """Blocks ``start`` to ``end`` of ``node``, held by ``references`` requests; free runs are linked in a ring.

    ``rest`` is what was cut off its tail while somebody held it. A request that held the run before goes on to the
    rest as far as its own blocks go.
    """

    __slots__ = ("after", "before", "end", "node", "references", "released_ns", "rest", "start")

    before: Run
    after: Run

    def __init__(self, node: Node | None, start: int, end: int, references: int) -> None:
        self.node = node
        self.start = start
        self.end = end
        self.references = references
        self.released_ns = -1
        self.rest: Run | None = None


class RunPool:
    """``size`` blocks, all free and empty at first.

    ``free`` counts unreferenced blocks, ``taken`` the blocks ever taken from the free list; the n-th block taken
    goes to the n-th allocation of the run, which is how evictions find their pass and request afterwards.

    evictions
        flat, two per row: how many blocks had been taken before, and how many contiguous blocks lost their content.
    eviction_sources, eviction_keys
        when ``record`` is set, per row of the above: flat ``owner, end, released_ns``, and the keys (None for an
        owner's private blocks); the blocks lost are those before position ``end``, last first.
    kept
        values of ``taken`` at which a block was evicted whose content another block still holds.
    """

    def __init__(self, size: int, record: bool) -> None:
        self.size = size
        self.free = size
        self.blank = size
        self.taken = 0
        self.evictions: list[int] = []
        self.eviction_sources: list[int] = []
        self.eviction_keys: list[Keys | None] = []
        self.kept: list[int] = []
        self._record = record
        self._ring = ring = Run(None, 0, 0, 0)
        ring.before = ring.after = ring

    def match(self, path: Sequence[Node], limit: int, settle: Callable[[Node], None]) -> tuple[list[Run], int, int]:
        """The runs that hold the longest resident beginning of ``path``, up to position ``limit``.

        ``settle`` is called before a node is looked at that running requests may have written to.
        Returns the runs, the position they reach and how many of their blocks are free. Cuts runs where needed, so
        that every returned run is hit as a whole.
        """
        runs: list[Run] = []
        reached = idle = 0
        for node in path:
            if node.writers:
                settle(node)
            if node.overlapping:
                found = self._first_copies(node, min(node.end, limit))
            else:
                found = node.runs
            for run in found:
                if run.end > limit:
                    if run.start >= limit:
                        return runs, reached, idle
                    run = self.split(run, limit)
                runs.append(run)
                reached = run.end
                if not run.references:
                    idle += reached - run.start
            if reached < node.end or reached == limit:
                break
        return runs, reached, idle

    def reference(self, runs: list[Run]) -> None:
        """Add a reference to each of these runs; free ones leave the free list."""
        for run in runs:
            if not run.references:
                before, after = run.before, run.after
                before.after = after
                after.before = before
                self.free -= run.end - run.start
            run.references += 1

    def take(self, count: int) -> None:
        """Take ``count`` blocks from the front of the free list; they lose what they held."""
        self.free -= count
        blank = self.blank
        if count <= blank:
            self.blank = blank - count
            self.taken += count
            return
        self.blank = 0
        self.taken += blank
        self._evict(count - blank)

    def register(self, held: list[Run], node: Node, start: int, end: int) -> int:
        """Say that a request's next blocks, ``start`` to ``end`` in ``node``, hold their content from now on.

        ``held`` are the request's runs, which grow. Returns how many of these blocks hold what another one held.
        """
        runs = node.runs
        last = held[-1] if held else None
        grows = last is not None and last.end == start and last.references == 1 and last.node is node
        copies = 0
        if runs and (node.overlapping or runs[-1].end > start):
            node.overlapping = True
            copies = sum(_is_held(node, position) for position in range(start, end))
            # Runs stay in order of registration, for each block.
            grows = grows and not any(run.start < end and start < run.end for run in runs[runs.index(last) + 1 :])
        if grows:
            assert last is not None
            last.end = end
        else:
            run = Run(node, start, end, 1)
            runs.append(run)
            held.append(run)
        return copies

    def release(self, held: list[Run], end: int, now_ns: int) -> None:
        """Drop a request's reference to its blocks with content, which reach up to position ``end``; empties ``held``.

        The last goes first, so that a prefix outlives what was built on it.
        """
        ring = self._ring
        last = ring.before
        while held:
            run = held.pop()
            if run.end < end:  # the rest was cut off while it was held, and goes first
                assert run.rest is not None
                held += (run, run.rest)
                continue
            end = run.start
            run.references -= 1
            if not run.references:
                run.released_ns = now_ns
                self.free += run.end - end
                run.before = last
                last.after = run
                last = run
        last.after = ring
        ring.before = last

    def split(self, run: Run, position: int) -> Run:
        """Cut a run at ``position`` and return its beginning."""
        assert run.node is not None
        runs = run.node.runs
        at = runs.index(run)
        if run.references:
            tail = Run(run.node, position, run.end, run.references)
            tail.rest = run.rest
            run.rest = tail
            run.end = position
            runs.insert(at + 1, tail)
            return run
        # Nobody holds a free run, so the new object may be its beginning; its tail is taken before it.
        head = Run(run.node, run.start, position, 0)
        head.released_ns = run.released_ns
        head.before, head.after = run, run.after
        run.after.before = head
        run.after = head
        run.start = position
        runs.insert(at, head)
        return head

    def split_node(self, head: Node, tail: Node) -> None:
        """Share out the runs of a node that was cut in two."""
        position = tail.start
        for run in list(head.runs):
            if run.start < position < run.end:
                self.split(run, position)
        tail.runs = [run for run in head.runs if run.start >= position]
        head.runs = [run for run in head.runs if run.start < position]
        for run in tail.runs:
            run.node = tail
        if head.overlapping:
            tail.overlapping = True
            _untangle(head)
            _untangle(tail)

    def _evict(self, count: int) -> None:
        ring = self._ring
        run = ring.after
        while count:
            node = run.node
            assert node is not None
            size = run.end - run.start
            lost = size if size < count else count
            self.evictions += (self.taken, lost)
            if self._record:
                self.eviction_sources += (node.owner, run.end, run.released_ns)
                self.eviction_keys.append(node.keys)
            end = run.end
            run.end = end - lost
            if node.overlapping:
                for position in range(end - 1, end - lost - 1, -1):
                    if _is_held(node, position):
                        self.kept.append(self.taken + end - 1 - position)
            self.taken += lost
            count -= lost
            if lost == size:
                if node.overlapping:
                    node.runs.remove(run)
                else:
                    node.runs.pop()
                run = run.after
            if node.overlapping:
                _untangle(node)
        ring.after = run
        run.before = ring

    def _first_copies(self, node: Node, limit: int) -> list[Run]:
        """For each resident block of an overlapping node, the run that registered it first, cut to fit."""
        found: list[Run] = []
        position = node.start
        while position < limit:
            stop = limit
            for run in node.runs:
                if run.start <= position < run.end:
                    break
                if position < run.start < stop:
                    stop = run.start
            else:
                return found
            if run.start < position:
                self.split(run, position)
                run = node.runs[node.runs.index(run) + 1] if run.end == position else run
            if run.end > stop:
                run = self.split(run, stop)
            found.append(run)
            position = run.end
        return found


def _is_held(node: Node, position: int) -> bool:
    return any(run.start <= position < run.end for run in node.runs)


def _untangle(node: Node) -> None:
    """Notice when no block of a node is held more than once any longer."""
    runs = sorted(node.runs, key=lambda run: run.start)
    if all(left.end <= right.start for left, right in pairwise(runs)):
        node.runs = runs
        node.overlapping = False
