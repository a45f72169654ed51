"""Who computes which content, and when it becomes something that others can hit.

Blocks that decoding fills are registered late: when the request stops, or when somebody looks at their node. That is
exact as long as nobody else holds or computes the same content. Requests of which that cannot be said are *contested*
and brought up to date after every stretch, in the order of the running list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.serving.skipping.log import Log
from engine.serving.skipping.pool import RunPool
from engine.serving.skipping.prefix_tree import Node, PrefixTree
from engine.serving.skipping.request import ScheduledRequest


class Content:
    """The prefix tree of everything that was asked for, and its writers. ``this`` is the pass being scheduled.

    ``fixed(request, pass)`` says how many tokens of a decoding request are what they are once a pass is scheduled.
    """

    def __init__(self, pool: RunPool, block_size: int, log: Log, fixed: Callable[[ScheduledRequest, int], int]) -> None:
        self.tree = PrefixTree(self._split_node)
        self.contested: list[ScheduledRequest] = []  # may register what another block holds, or another will
        self.this = 0
        self._pool = pool
        self._block_size = block_size
        self._copies = log.copies
        self._fixed = fixed

    def find_path(self, request: ScheduledRequest) -> list[Node]:
        """The request's nodes: those of its keys, and one of its own for the blocks past them."""
        path = self.tree.path(request.keys)
        request.tail = path[-1] if path else None
        given, total = len(request.keys), request.total_blocks
        if total > given:
            path.append(request.path[-1] if request.path else Node(None, given, total, request.index))
        request.path = path
        request.splits = self.tree.splits
        keyed = request.keyed
        if keyed:
            request.cursor = sum(node.end <= keyed for node in path)
        return path

    def path(self, request: ScheduledRequest) -> Sequence[Node]:
        """The request's nodes, looked up again where the tree has split since."""
        return request.path if request.splits == self.tree.splits else self.find_path(request)

    def retire(self, request: ScheduledRequest) -> None:
        """The request will not come back: its conversation may grow from here."""
        if request.splits != self.tree.splits and request.total_blocks:
            self.find_path(request)
        if request.tail is not None:
            request.tail.ends -= 1

    def claim(self, request: ScheduledRequest) -> None:
        """Note which content the request is about to compute, and whether anybody else has it or computes it."""
        path, keyed = request.path, request.keyed
        at = len(path)
        while at and path[at - 1].end > keyed:
            at -= 1
            node = path[at]
            if node.keys is None:
                continue
            if node.writers:
                self.settle(node)
                for writer in node.writers:
                    self._contest(writer)
                    self._contest(request)
                node.writers.append(request)
            else:
                node.writers = [request]
            runs = node.runs
            if runs and (runs[-1].end > keyed or (node.overlapping and any(run.end > keyed for run in runs))):
                self._contest(request)
        request.cursor = at

    def unclaim(self, request: ScheduledRequest) -> None:
        """The request computes no more."""
        path = self.path(request)
        if request.cursor < len(path):
            for node in path[request.cursor :]:
                if node.writers:
                    node.writers.remove(request)
        if request.contested:
            request.contested = False
            self.contested.remove(request)

    def _contest(self, request: ScheduledRequest) -> None:
        if not request.contested:
            request.contested = True
            self.contested.append(request)
            self.contested.sort(key=lambda contested: contested.seq)

    def register(self, request: ScheduledRequest, stop: int, this: int) -> None:
        """Register the request's blocks up to position ``stop``; ``this`` is the pass that filled them."""
        path = self.path(request)
        start, cursor = request.keyed, request.cursor
        copies = 0
        while start < stop:
            node = path[cursor]
            end = node.end
            if end > stop:
                end = stop
            else:
                cursor += 1
                if node.writers:
                    node.writers.remove(request)
            copies += self._pool.register(request.held, node, start, end)
            start = end
        request.keyed = stop
        request.cursor = cursor
        if copies:
            self._copies += (this, copies)

    def settle(self, node: Node) -> None:
        """Register what decoding requests have computed of a node up to the pass that is being scheduled."""
        for writer in tuple(node.writers or ()):
            if writer.decoding:
                self._register_decoded(writer, self.this)

    def is_written(self, request: ScheduledRequest, hits: int) -> bool:
        """Whether a running request could add to a waiting request's ``hits``."""
        for node in request.path:
            if node.end > hits:
                return bool(node.writers)
        return False

    def has_copies(self, request: ScheduledRequest, hits: int) -> bool:
        """Whether some of the blocks that a waiting request hits have copies, or a running request could make one."""
        return any(node.start < hits and (node.overlapping or node.writers) for node in request.path)

    def settle_contested(self, first: int, last: int) -> None:
        """Register, in order, what contested requests decoded in the passes ``first`` to ``last``."""
        decoding = [request for request in self.contested if request.decoding]
        for this in range(first, last + 1):
            for request in decoding:
                self.settle_decoded(request, this)

    def settle_decoded(self, request: ScheduledRequest, this: int) -> None:
        """Register what a decoding request has filled once pass ``this`` is scheduled."""
        if this > request.since and self._fixed(request, this) >= (request.keyed + 1) * self._block_size:
            self._register_decoded(request, this)

    def _register_decoded(self, request: ScheduledRequest, this: int) -> None:
        filled = self._fixed(request, this) // self._block_size
        if filled > request.keyed:
            self.register(request, filled, this)

    def _split_node(self, head: Node, tail: Node) -> None:
        self._pool.split_node(head, tail)
        if head.writers:
            tail.writers = list(head.writers)
            head.writers = [writer for writer in head.writers if writer.keyed < head.end]
