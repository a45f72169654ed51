"""SGLang's prefix cache: a radix tree of the content that the pool holds, evicted leaf by leaf.

A node is a stretch of pages (blocks) that were cached together and nothing seen so far enters or leaves half-way.
Content is held once: whoever computed it again gives its own pages back. A node that somebody *locks* cannot be
evicted, nor can what leads to it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import TypeAlias

from engine.serving.record import private_key

Keys: TypeAlias = "array[int]"


class Chain:
    """The content of a request page by page: the keys it was given, and after them keys that only it has.

    A key says what its page holds and all that comes before it, so pages are equal up to where one key is.
    """

    __slots__ = ("given", "index", "known")

    def __init__(self, index: int, given: Sequence[int]) -> None:
        self.index = index
        self.given: Keys = given if isinstance(given, array) and given.typecode == "q" else array("q", given)
        self.known = len(self.given)

    def key(self, position: int) -> int:
        """Key of the page at a position."""
        return self.given[position] if position < self.known else private_key(self.index, position)

    def keys(self, start: int, stop: int) -> Keys:
        """Keys of the pages ``start`` to ``stop``."""
        given = self.given[start:stop]
        first = max(start, self.known)
        given.extend(private_key(self.index, position) for position in range(first, stop))
        return given


class Node:
    """Pages that were cached together, after those of ``parent``.

    ``locks`` counts the requests that hold it, ``access`` orders nodes by when they were last looked up or cached, and
    ``released_ns`` is when the last request let go of it (-1: nobody has held it).
    """

    __slots__ = ("access", "children", "filed", "keys", "locks", "parent", "released_ns", "serial")

    def __init__(self, parent: Node | None, keys: Keys, serial: int) -> None:
        self.parent = parent
        self.keys = keys
        self.serial = serial
        self.children: dict[int, Node] = {}
        self.locks = 0
        self.access = 0
        self.released_ns = -1
        self.filed = False  # among the leaves that may be evicted


class RadixTree:
    """``size`` pages of content, of which ``locked`` are held by requests; the others may be evicted."""

    def __init__(self) -> None:
        self.root = Node(None, array("q"), 0)
        self.size = 0
        self.locked = 0
        self.clock = 0  # counts looks and insertions
        self._serial = 0
        self._leaves: list[tuple[int, int, Node]] = []  # by access; looked at again when their turn comes

    @property
    def evictable(self) -> int:
        """Pages that nobody holds."""
        return self.size - self.locked

    def match(self, chain: Chain, limit: int) -> tuple[Node, int]:
        """The node with which the longest cached beginning of ``chain`` ends, and its pages, ``limit`` at most.

        What is looked up counts as used. A node that the chain leaves half-way is cut there.
        """
        self.clock += 1
        return self._walk(chain, self.root, 0, limit)

    def insert(self, chain: Chain, stop: int, node: Node, position: int) -> tuple[Node, int]:
        """Cache the pages of ``chain`` up to ``stop``; those up to ``position`` end with ``node``, which is held.

        Returns the last node and how many pages were there already. What leads to ``node`` counts as used as well: that
        is said when it is let go.
        """
        self.clock += 1
        node, position = self._walk(chain, node, position, stop)
        if position == stop:
            return node, position
        self._serial += 1
        leaf = Node(node, chain.keys(position, stop), self._serial)
        leaf.access = self.clock
        node.children[leaf.keys[0]] = leaf
        self.size += stop - position
        self._file(leaf)
        return leaf, position

    def _walk(self, chain: Chain, node: Node, position: int, limit: int) -> tuple[Node, int]:
        """Down from ``node``, which ends at ``position``, as far as ``chain`` is cached."""
        given, known, now = chain.given, chain.known, self.clock
        while position < limit:
            child = node.children.get(given[position] if position < known else chain.key(position))
            if child is None:
                break
            child.access = now
            keys = child.keys
            end = position + len(keys)
            if end <= limit and (given[end - 1] if end <= known else chain.key(end - 1)) == keys[-1]:
                node, position = child, end
                continue
            common = _common(chain, keys, position, limit)
            return self._split(child, common), position + common
        return node, position

    def lock(self, node: Node, above: Node) -> None:
        """Hold the nodes from ``node`` up to ``above``, which is not among them."""
        while node is not above:
            if not node.locks:
                self.locked += len(node.keys)
            node.locks += 1
            assert node.parent is not None
            node = node.parent

    def unlock(self, node: Node, now_ns: int, used: int = 0) -> None:
        """Let go of a node and of all that leads to it; by ``clock``, they were used at ``used`` if not later."""
        while node.parent is not None:
            if node.access < used:
                node.access = used
            node.locks -= 1
            if not node.locks:
                self.locked -= len(node.keys)
                node.released_ns = now_ns
                self._file(node)
            node = node.parent

    def evict(self, pages: int) -> Iterator[Node]:
        """Take leaves that nobody holds, least recently used first and as a whole, until ``pages`` are free."""
        leaves = self._leaves
        while pages > 0:
            access, _serial, node = heappop(leaves)
            node.filed = False
            if node.access != access:
                self._file(node)
                continue
            if node.locks or node.children:
                continue
            parent = node.parent
            assert parent is not None
            del parent.children[node.keys[0]]
            self.size -= len(node.keys)
            pages -= len(node.keys)
            self._file(parent)
            yield node

    def _file(self, node: Node) -> None:
        if not (node.filed or node.locks or node.children) and node.parent is not None:
            node.filed = True
            heappush(self._leaves, (node.access, node.serial, node))

    def _split(self, node: Node, length: int) -> Node:
        """Cut a node after ``length`` pages and return its beginning; ``node`` itself goes on as the rest."""
        assert node.parent is not None
        self._serial += 1
        head = Node(node.parent, node.keys[:length], self._serial)
        head.locks, head.access, head.released_ns = node.locks, node.access, node.released_ns
        node.parent.children[head.keys[0]] = head
        node.keys = node.keys[length:]
        node.parent = head
        head.children[node.keys[0]] = node
        return head

    def check_integrity(self, held: Sequence[Node]) -> None:
        """Check the counts of the tree against its nodes and the nodes that requests hold.

        Raises:
            AssertionError: they disagree (a defect of the program).
        """
        locks: dict[int, int] = {}
        for held_node in held:
            at = held_node
            while at.parent is not None:
                locks[id(at)] = locks.get(id(at), 0) + 1
                assert at.parent.children.get(at.keys[0]) is at, "a node that is held is not in the tree"
                at = at.parent
        size = locked = 0
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            assert len(node.keys), "a node without pages"
            assert node.locks == locks.get(id(node), 0), "a node has other locks than there are holders"
            assert node.filed or node.locks or node.children, "a leaf that could never be evicted"
            size += len(node.keys)
            locked += len(node.keys) if node.locks else 0
            stack += node.children.values()
        assert (size, locked) == (self.size, self.locked), "the tree's counts are wrong"


def _common(chain: Chain, keys: Keys, position: int, limit: int) -> int:
    """How many pages ``keys``, whose first is known to agree, have in common with ``chain`` from ``position`` on."""
    most = min(len(keys), limit - position)
    if chain.key(position + most - 1) == keys[most - 1]:
        return most
    agree, differ = 0, most - 1
    while differ - agree > 1:
        middle = (agree + differ) // 2
        if chain.key(position + middle) == keys[middle]:
            agree = middle
        else:
            differ = middle
    return differ
