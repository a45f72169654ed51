"""SGLang's pool: pages that hold nothing, those of running requests, and the radix tree of what is cached."""

from __future__ import annotations

from engine.serving.contract import ServerConfig
from engine.serving.sglang.log import Log
from engine.serving.sglang.radix import RadixTree
from engine.serving.sglang.request import Request


class Pages:
    """``free`` pages hold nothing; what the tree holds and nobody uses can be evicted."""

    def __init__(self, config: ServerConfig, log: Log) -> None:
        self.tree = RadixTree()
        self.free = config.usable_kv_blocks
        self._size = config.block_size
        self._caches = config.prefix_caching
        self._log = log

    @property
    def available(self) -> int:
        """Pages that a running request could get."""
        tree = self.tree
        return self.free + tree.size - tree.locked

    def take(self, count: int, request: Request) -> None:
        """Take pages for a request; where too few hold nothing, leaves of the tree are evicted."""
        if count > self.free:
            for leaf in self.tree.evict(count - self.free):
                self.free += len(leaf.keys)
                self._log.evicted(leaf, len(self._log.starts), request.index)
        self.free -= count

    def cache(self, request: Request) -> None:
        """Put what a request has computed into the tree; it goes on holding it."""
        full = request.computed // self._size
        if not self._caches or full == request.shared:
            return
        node, there = self.tree.insert(request.chain, full, request.node, request.shared)
        request.used = self.tree.clock
        self._log.stored(request, there, full, len(self._log.starts) - 1)
        self.free += there - request.shared  # what others cached meanwhile is shared, and its own copy given back
        self.tree.lock(node, request.node)
        request.node, request.shared = node, full

    def release(self, request: Request, pages: int, now_ns: int, keep: bool) -> None:
        """Let go of the ``pages`` of a request; with ``keep``, what it computed is cached, outputs included."""
        if keep:
            self.cache(request)
        self.free += pages - request.shared
        self.tree.unlock(request.node, now_ns, request.used)
        request.node, request.shared = self.tree.root, 0
