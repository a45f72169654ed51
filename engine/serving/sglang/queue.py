"""SGLang's waiting queue: who is tried next, and how much waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from engine.serving.sglang.radix import RadixTree
from engine.serving.sglang.request import Request

LONGEST_QUEUE_TO_SORT = 128
"""With more waiting, the queue is left in the order it has."""
SMALL_MATCH_TOKENS = 32
"""Who hits no more than this, but as much of the prompt of somebody ahead, is put last: the other computes it first."""


class WaitingQueue:
    """``requests`` that wait, in the order in which they are tried.

    ``fresh`` and ``again`` are count, sum and sum of squares of the known tokens of those that were never admitted and
    of those that were retracted.
    """

    def __init__(self, by_prefix: bool, page: int) -> None:
        self.fresh = [0, 0, 0]
        self.again = [0, 0, 0]
        self.requests: deque[Request] = deque()
        self._by_prefix = by_prefix
        self._page = page
        self._joined = 0

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)

    def join(self, request: Request) -> None:
        """Put a request at the end."""
        request.joined = self._joined
        self._joined += 1
        self.requests.append(request)
        self._count(request, 1)

    def leave(self, request: Request) -> bool:
        """Take a request out; whether it was there."""
        if request not in self.requests:
            return False
        self.requests.remove(request)
        self._count(request, -1)
        return True

    def admit_first(self, count: int) -> list[int]:
        """Take the first ``count`` out; returns how many that came before each of them were still waiting then."""
        admitted = [self.requests.popleft() for _ in range(count)]
        for request in admitted:
            self._count(request, -1)
        if not self._by_prefix:
            return [0] * count
        waits = [request.joined for request in self.requests]
        ahead = []
        for at, request in enumerate(admitted):
            later = sum(other.joined < request.joined for other in admitted[at + 1 :])
            ahead.append(later + sum(joined < request.joined for joined in waits))
        return ahead

    def sort(self, tree: RadixTree) -> None:
        """Put those with the longest cached prefix first, where that is the policy and the queue is not too long."""
        if not self._by_prefix or len(self.requests) > LONGEST_QUEUE_TO_SORT:
            return
        page = self._page
        shared_at = -(-SMALL_MATCH_TOKENS // page) - 1  # the page with which a common prefix is long enough
        prefixes: set[int] = set()
        ranks: dict[int, int] = {}
        for request in self.requests:
            limit = (request.known - 1) // page
            _node, pages = tree.match(request.chain, limit)
            ranks[request.index] = -pages
            if pages * page <= SMALL_MATCH_TOKENS and limit > shared_at:
                key = request.chain.key(shared_at)
                if key in prefixes:
                    ranks[request.index] = 1
                prefixes.add(key)
        if any(ranks.values()):
            self.requests = deque(sorted(self.requests, key=lambda request: ranks[request.index]))

    def _count(self, request: Request, sign: int) -> None:
        moments = self.again if request.admissions else self.fresh
        known = request.known
        moments[0] += sign
        moments[1] += sign * known
        moments[2] += sign * known * known
