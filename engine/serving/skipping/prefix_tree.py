"""Content of all prompts and outputs as a radix tree of block keys, grown request by request.

A node is a stretch of blocks that nothing seen so far enters or leaves half-way. Positions count blocks from the
beginning of the prompt; whatever holds a node also holds all that leads to it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, TypeAlias

Keys: TypeAlias = "array[int]"
"""Block keys as 64-bit numbers: a prompt has hundreds, and they are compared by stretches."""


class Node:
    """Blocks ``start`` to ``end`` of every request whose keys lead here; their keys are ``keys[start:end]``.

    ``keys`` is None for content that only the request ``owner`` can have. ``runs`` and ``writers`` belong to the
    pool and the scheduler: who holds the content, and which running requests are yet to compute some of it. ``ends``
    counts the paths in use that end here.
    ``overlapping`` says that some block of the node may be held more than once; otherwise the runs are in order,
    without gaps, from ``start`` on.
    """

    __slots__ = ("children", "end", "ends", "keys", "overlapping", "owner", "runs", "start", "writers")

    def __init__(self, keys: Keys | None, start: int, end: int, owner: int = -1) -> None:
        self.keys = keys
        self.start = start
        self.end = end
        self.owner = owner
        self.ends = 0
        self.children: dict[int, Node] | None = None
        self.runs: list[Any] = []
        self.writers: list[Any] | None = None
        self.overlapping = False


class PrefixTree:
    """All keys seen. ``on_split(head, tail)`` is told when a node is cut in two; ``splits`` counts that.

    A path found earlier is stale once ``splits`` has changed: ask for it again.
    """

    def __init__(self, on_split: Callable[[Node, Node], None]) -> None:
        self.splits = 0
        self._root = Node(None, 0, 0)
        self._on_split = on_split

    def path(self, keys: Keys) -> list[Node]:
        """The nodes that cover exactly ``keys``, in order; what was missing is added.

        A leaf at which no path in use ends (see ``Node.ends``) grows, so a conversation stays one node for as long as
        nobody branches off. ``keys`` are kept, not copied: they must not change afterwards.
        """
        path: list[Node] = []
        node = self._root
        position, end = 0, len(keys)
        # Down by the first key of each node alone: the keys of the last node are those of the whole way to it.
        while position < end and node.children is not None:
            found = node.children.get(keys[position])
            if found is None:
                break
            node = found
            path.append(node)
            position = node.end
        if path and (position > end or keys[:position] != node.keys[:position]):  # type: ignore[index]
            path = self._branch(keys)
            node = path[-1]
            position = node.end
        if position < end:
            if path and node.children is None and not node.ends:
                node.keys = keys
                node.end = end
                return path
            rest = Node(keys, position, end)
            if node.children is None:
                node.children = {}
            node.children[keys[position]] = rest
            path.append(rest)
        return path

    def _branch(self, keys: Keys) -> list[Node]:
        """The path as far as there is one; a node that the keys leave or end in half-way is cut there."""
        path: list[Node] = []
        node = self._root
        position = 0
        while position < len(keys) and node.children is not None:
            found = node.children.get(keys[position])
            if found is None:
                break
            node = found
            position = _divergence(keys, node)
            if position < node.end:
                self._split(node, position)
            path.append(node)
        return path

    def _split(self, node: Node, position: int) -> None:
        """Cut ``node`` at ``position``: it keeps its beginning, a new child gets the rest."""
        assert node.keys is not None
        tail = Node(node.keys, position, node.end)
        tail.children = node.children
        tail.ends = node.ends
        node.ends = 0
        node.children = {node.keys[position]: tail}
        node.end = position
        self.splits += 1
        self._on_split(node, tail)


def _divergence(keys: Keys, node: Node) -> int:
    """The first position at which ``keys`` end or differ from those of ``node``."""
    assert node.keys is not None
    position, end = node.start + 1, min(node.end, len(keys))
    if keys[position:end] == node.keys[position:end]:
        return end
    while position < end and keys[position] == node.keys[position]:
        position += 1
    return position
