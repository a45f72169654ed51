"""Routers: which worker gets a request, decided when it arrives from what is known by then."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from engine.errors import GapscopeError
from engine.serving.contract import ServedRequest

ROUTERS = ("round_robin", "least_loaded", "session", "sibling", "kv_aware")
DECAY = 0.97
"""What a pick leaves of the load that a KV-aware router remembers of each worker."""


class Router(Protocol):
    """Chooses workers, numbered from 0. ``in_flight`` counts, by worker, what was sent there and has not ended."""

    def choose(self, request: ServedRequest, in_flight: list[int]) -> int:
        """The worker that gets the request; called once for each, in order of arrival."""


def make_router(name: str, workers: int, block_size: int, kv_blocks: int, overlap_weight: float = 1.0) -> Router:
    """The router of that name.

    Args:
        name: one of ROUTERS.
        workers: how many there are.
        block_size: tokens per block.
        kv_blocks: blocks that each worker can hold, for ``kv_aware``.
        overlap_weight: what a block that is missing counts, for ``kv_aware``.

    Raises:
        GapscopeError: there is no such router.
    """
    match name:
        case "round_robin":
            return RoundRobin()
        case "least_loaded":
            return LeastLoaded()
        case "session":
            return Affinity(by_siblings=False)
        case "sibling":
            return Affinity(by_siblings=True)
        case "kv_aware":
            return KvAware(workers, block_size, kv_blocks, overlap_weight)
    raise GapscopeError(f"Unknown router {name!r}: expected one of {', '.join(ROUTERS)}.")


class RoundRobin:
    """One worker after the other."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: ServedRequest, in_flight: list[int]) -> int:
        """See :class:`Router`."""
        worker = self._next
        self._next = (worker + 1) % len(in_flight)
        return worker


class LeastLoaded:
    """The worker with the fewest requests in flight; of equal ones the first."""

    def choose(self, request: ServedRequest, in_flight: list[int]) -> int:
        """See :class:`Router`."""
        return in_flight.index(min(in_flight))


class Affinity:
    """Where the first of its session went; the first goes where the fewest are in flight.

    A session is a play with its whole tree, or, by siblings, the conversations of it that one request spawned (the root
    is a group of its own). A request without a session goes where the fewest are in flight.
    """

    def __init__(self, by_siblings: bool) -> None:
        self._by_siblings = by_siblings
        self._homes: dict[Hashable, int] = {}
        self._least_loaded = LeastLoaded()

    def choose(self, request: ServedRequest, in_flight: list[int]) -> int:
        """See :class:`Router`."""
        if request.session < 0:
            return self._least_loaded.choose(request, in_flight)
        key = (request.session, request.spawned_by) if self._by_siblings else request.session
        worker = self._homes.get(key)
        if worker is None:
            worker = self._homes[key] = self._least_loaded.choose(request, in_flight)
        return worker


class KvAware:
    """The worker at which ``weight * (blocks - hit) + recent`` is least; of equal ones the first.

    ``blocks`` are the full blocks of the prompt, ``hit`` how many of them, from the first on, the router remembers
    having sent there: the last ``kv_blocks`` of each worker, of one prompt the end forgotten before the beginning. It
    does not look into the pools. ``recent`` stands for the load: with every pick it becomes DECAY of itself for each
    worker, and grows by the blocks that the chosen one misses (by 1 where the prompt has no full block).
    """

    def __init__(self, workers: int, block_size: int, kv_blocks: int, weight: float) -> None:
        self._block_size = block_size
        self._kv_blocks = kv_blocks
        self._weight = weight
        self._held: list[dict[int, None]] = [{} for _ in range(workers)]  # the longest unused first
        self._recent = [0.0] * workers

    def choose(self, request: ServedRequest, in_flight: list[int]) -> int:
        """See :class:`Router`."""
        blocks = request.prompt_tokens // self._block_size
        keys = request.block_keys[:blocks]
        hits = [_hits(held, keys) for held in self._held]
        costs = [self._weight * (blocks - hit) + recent for hit, recent in zip(hits, self._recent, strict=True)]
        worker = costs.index(min(costs))
        self._recent = [recent * DECAY for recent in self._recent]
        self._recent[worker] += blocks - hits[worker] if blocks else 1
        held = self._held[worker]
        for key in reversed(keys):
            held.pop(key, None)
            held[key] = None
        for key in list(held)[: len(held) - self._kv_blocks] if len(held) > self._kv_blocks else ():
            del held[key]
        return worker


def _hits(held: dict[int, None], keys: Sequence[int]) -> int:
    """How many of a prompt's blocks are held, from the first on; whoever holds a block holds those before it."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        if keys[middle] in held:
            low = middle + 1
        else:
            high = middle
    return low
