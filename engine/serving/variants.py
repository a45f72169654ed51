"""vLLM's pool under other rules of scheduling: ATOM, TensorRT-LLM, and rules that are here to reproduce a bias.

The plain core goes from pass to pass and walks every request; each rule replaces one of its steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.serving.block_pool import BlockPool, Eviction
from engine.serving.contract import ServerConfig
from engine.serving.plain import PlainServer, Request, Work
from engine.timing.contract import PassTimeSource


class VariantServer(PlainServer):
    """One replica (see :class:`engine.serving.contract.Server`) that departs from vLLM where ``config`` says so."""

    @staticmethod
    def is_asked_for(config: ServerConfig) -> bool:
        """Whether ``config`` departs from vLLM."""
        return VariantServer.is_alone(config) or config.engine == "trtllm" or config.reservation != "own"

    @staticmethod
    def is_alone(config: ServerConfig) -> bool:
        """Whether ``config`` asks for anything that no other core can do."""
        return (
            config.engine == "atom"
            or config.policy == "longest_prefix"
            or config.eviction != "own"
            or config.cache_blocks > 0
        )

    def __init__(self, config: ServerConfig, timing: PassTimeSource) -> None:
        super().__init__(config, timing)
        whole = config.engine == "trtllm" and config.reservation == "own"
        self._reservation = "whole_sequence" if whole else config.reservation
        self._apart: DoubleBookedPool | None = None
        if config.cache_blocks:
            self.pool = self._apart = DoubleBookedPool(config.usable_kv_blocks, _pool(config, config.cache_blocks))
        else:
            self.pool = _pool(config, config.usable_kv_blocks)

    def _schedule(self, now_ns: int) -> list[Work]:
        """ATOM: a pass with prompts holds no decodes; without any, it holds all that decode."""
        if self._apart is not None:
            self._apart.now_ns = now_ns
        if self.config.engine != "atom":
            return super()._schedule(now_ns)
        batch: list[Work] = []
        budget, preempted = self._go_on(batch, self.config.max_num_batched_tokens, now_ns, _prefills)
        if not preempted:
            self._admit_waiting(batch, budget, now_ns)
        if not batch:
            self._go_on(batch, self.config.max_num_batched_tokens, now_ns, lambda request: not _prefills(request))
        return batch

    def _next_place(self) -> int:
        """Longest prefix: whoever would hit most, of those whoever came first."""
        if self.config.policy != "longest_prefix":
            return 0
        hits = [len(self._hits(request)) for request in self._waiting]
        return hits.index(max(hits))

    def _fits(self, request: Request, hits: list[int], computed: int, budget: int) -> bool:
        """Reserving: room for all that the request will ever compute, besides what is promised to the running ones."""
        if self._reservation == "own":
            return super()._fits(request, hits, computed, budget)
        needed = self._most_blocks(request)
        if self._reservation == "per_sharer":
            return needed + sum(map(self._most_blocks, self._holders())) <= self.pool.size
        idle_hits = sum(self.pool.is_free(block) for block in hits)
        promised = sum(self._most_blocks(holder) - len(holder.blocks) for holder in self._holders())
        return needed - len(hits) + idle_hits + promised <= self.pool.num_free

    def _most_blocks(self, request: Request) -> int:
        """Blocks of a request's prompt, of all of its output but the last token, which has no KV, and of its drafts."""
        return self._blocks(request.prompt_tokens + request.output_tokens - 1 + self._drafts)

    def _fill(self, request: Request, computed: int, drafts: int = 0) -> None:
        registered = request.registered
        super()._fill(request, computed, drafts)
        if self._apart is not None and request.registered > registered:
            self._apart.use(request.blocks)
            self._write_evictions(request, self._apart.lost())


def _prefills(request: Request) -> bool:
    """Whether a running request has prompt tokens to compute, or tokens again that it had computed before."""
    return request.stretch is None


def _pool(config: ServerConfig, size: int) -> BlockPool:
    return FlatPool(size) if config.eviction == "flat_lru" else BlockPool(size)


class FlatPool(BlockPool):
    """Least recently used first whatever was built on it: of blocks let go together the first of the prompt goes first.

    What follows it stays in the pool and can never be hit again.
    """

    def release(self, blocks: Sequence[int], now_ns: int) -> None:
        """See :meth:`BlockPool.release`; the other way round."""
        super().release(blocks[::-1], now_ns)


class DoubleBookedPool(BlockPool):
    """Blocks for running requests, and apart from them a cache that has room of its own for what they computed.

    What is hit costs no block here, as if it lay in both. ``cache`` holds content that nobody references; ``now_ns`` is
    when it is used.
    """

    def __init__(self, size: int, cache: BlockPool) -> None:
        super().__init__(size)
        self.now_ns = -1
        self._cache = cache
        self._numbers: dict[int, int] = {}  # of content that was hit: like blocks, past those that there are
        self._content: list[int] = []  # by that number, less ``size``
        self._computed: dict[int, int] = {}  # content of blocks that requests filled themselves
        self._lost: list[Eviction] = []

    @property
    def num_keys(self) -> int:
        """Distinct content in the cache."""
        return self._cache.num_keys

    def is_free(self, block: int) -> bool:
        """What is cached takes nothing from the free blocks."""
        return block < self.size and super().is_free(block)

    def find(self, key: int) -> int | None:
        """What stands for the cached block; None if the cache lacks it."""
        if self._cache.find(key) is None:
            return None
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self.size + len(self._content)
            self._content.append(key)
        return number

    def reference(self, blocks: Iterable[int]) -> None:
        """Content that is hit counts as used."""
        self.use(list(blocks))

    def register(self, block: int, key: int) -> None:
        """Cache what a block holds; the cache may lose something for it."""
        self._computed[block] = key
        if self._cache.find(key) is None:
            (cached,), lost = self._cache.take(1)
            self._cache.register(cached, key)
            self._cache.release([cached], self.now_ns)
            self._lost += lost

    def release(self, blocks: Sequence[int], now_ns: int) -> None:
        """Give back a request's blocks; their content counts as used."""
        self.now_ns = now_ns
        self.use(blocks)
        own = [block for block in blocks if block < self.size]
        for block in own:
            self._computed.pop(block, None)
        super().release(own, now_ns)

    def use(self, blocks: Sequence[int]) -> None:
        """The content of these blocks of one request counts as used, as far as it is cached."""
        keys = [
            self._content[block - self.size] if block >= self.size else self._computed.get(block) for block in blocks
        ]
        found = [self._cache.find(key) for key in keys if key is not None]
        cached = [block for block in found if block is not None]
        self._cache.reference(cached)
        self._cache.release(cached, self.now_ns)

    def lost(self) -> list[Eviction]:
        """What the cache lost since this was asked last."""
        lost, self._lost = self._lost, []
        return lost
