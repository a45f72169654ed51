"""Content of all prompts and outputs as a radix tree of block keys, grown request by request.

A node is a stretch of blocks that nothing seen so far enters or leaves half-way. Positions count blocks from the
beginning of the prompt; whatever holds a node also holds all that leads to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Node:
    """Blocks ``start`` to ``end`` of every request whose keys lead here; their keys are ``keys[start:end]``.

    ``keys`` is None for content that only the request ``owner`` can have. ``runs`` and ``writers`` belong to the
    pool and the scheduler: who holds the content, and which running requests are yet to compute some of it.
    ``overlapping`` says that some block of the node may be held more than once; otherwise the runs are in order,
    without gaps, from ``start`` on.
    """

    __slots__ = ("children", "end", "keys", "overlapping", "owner", "runs", "start", "writers")

    def __init__(self, keys: list[int] | None, start: int, end: int, owner: int = -1) -> None:
        self.keys = keys
        self.start = start
        self.end = end
        self.owner = owner
        self.children: dict[int, Node] = {}
        self.runs: list[Any] = []
        self.writers: list[Any] = []
        self.overlapping = False


class PrefixTree:
    """All keys seen. ``on_split(head, tail)`` is told when a node is cut in two; ``splits`` counts that.

    A path found earlier is stale once ``splits`` has changed: ask for it again.
    """

    def __init__(self, on_split: Callable[[Node, Node], None]) -> None:
        self.splits = 0
        self._root: dict[int, Node] = {}
        self._on_split = on_split

    def path(self, keys: list[int]) -> list[Node]:
        """The nodes that cover exactly ``keys``, in order; those that were missing are added.

        The list is kept, not copied: it must not change afterwards.
        """
        path: list[Node] = []
        level = self._root
        position, end = 0, len(keys)
        while position < end:
            node = level.get(keys[position])
            if node is None:
                node = level[keys[position]] = Node(keys, position, end)
                path.append(node)
                return path
            stop = node.end
            if stop > end or keys[position:stop] != node.keys[position:stop]:  # type: ignore[index]
                stop = _divergence(keys, node)
                self._split(node, stop)
            path.append(node)
            position = stop
            level = node.children
        return path

    def _split(self, node: Node, position: int) -> None:
        """Cut ``node`` at ``position``: it keeps its beginning, a new child gets the rest."""
        assert node.keys is not None
        tail = Node(node.keys, position, node.end)
        tail.children = node.children
        node.children = {node.keys[position]: tail}
        node.end = position
        self.splits += 1
        self._on_split(node, tail)


def _divergence(keys: list[int], node: Node) -> int:
    """The first position at which ``keys`` end or differ from those of ``node``."""
    assert node.keys is not None
    position, end = node.start + 1, min(node.end, len(keys))
    while position < end and keys[position] == node.keys[position]:
        position += 1
    return position
