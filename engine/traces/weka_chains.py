"""Which requests of a recorded session continue which: conversations told by how their prompts begin.

A recording of an agent lists requests in order of time, whichever of its conversations they belong to. A prompt that
begins with the whole prompt of an earlier request, of the same model and ended by then, continues it (an *extension*).
One that shares only a beginning starts a conversation of its own (a *fork*); but if what it parts from was never
continued, it is the continuation after all, with an edited or compacted context (a *seam*).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.traces.tree import Relation, Trigger

S = 1_000_000_000
EPSILON_NS = 1_000
"""Recorded seconds are rounded: what ends this much after a start still ended before it."""
SEAM_GAP_NS = 3600 * S
"""After a longer pause a fork continues what it parts from only if it shares at least half of it."""


@dataclass(eq=False, slots=True)
class Request:
    """One recorded request. ``order`` is its place in the recording, for equal starts.

    ``ids`` are numbered by :class:`engine.traces.local_ids.LocalIds`: equal ids at one place mean an equal beginning.
    """

    order: int
    start_ns: int
    api_ns: int | None
    model: str
    prompt_tokens: int
    output_tokens: int
    ids: Sequence[int]
    edges: list[tuple[Request, Trigger, int, Relation]] = field(default_factory=list)
    conversation: str = ""
    turn: int = -1

    @property
    def end_ns(self) -> int:
        """When its response ended; one without a recorded duration ended at once."""
        return self.start_ns + (self.api_ns or 0)

    @property
    def when(self) -> tuple[int, int]:
        """What requests are sorted by."""
        return self.start_ns, self.order


@dataclass(eq=False, slots=True)
class Chain:
    """One conversation: its requests in order of start.

    ``anchor`` is the request after which it parted from another conversation, with ``shared`` blocks in common; None
    where it shares no beginning with any. ``tail`` is its last request with hash ids.
    """

    requests: list[Request]
    anchor: Request | None = None
    shared: int = 0
    tail: Request | None = None


def chains_of(requests: Sequence[Request]) -> list[Chain]:
    """The conversations in ``requests``, in order of their first request."""
    rest = sorted(requests, key=lambda r: r.when)
    opening = _opening(rest)
    chains = _grow(rest[len(opening) :])
    _close_seams(chains)
    live = sorted((c for c in chains if c.requests), key=lambda c: c.requests[0].when)
    live[0].requests[:0] = opening
    for chain in live:
        chain.requests.sort(key=lambda r: r.when)  # requests without ids may have come between
    return live


def shared_blocks(left: Sequence[int], right: Sequence[int]) -> int:
    """How many blocks two prompts have in common from the beginning on."""
    return bisect_left(range(min(len(left), len(right))), True, key=lambda at: left[at] != right[at])


def _opening(requests: list[Request]) -> list[Request]:
    """A first request that no other begins like (say, one that finds a title): it opens the conversation after it."""
    if len(requests) < 2 or not requests[0].ids:
        return []
    begin = requests[0].ids[0]
    return [] if any(r.ids and r.ids[0] == begin for r in requests[1:]) else requests[:1]


class _Paths:
    """The last prompts of all chains so far, by the blocks in them. A chain keeps every block that it ever had."""

    def __init__(self, requests: Sequence[Request]) -> None:
        ids = [np.asarray(r.ids, np.int64) for r in requests if r.ids]
        self._least = min((int(i.min()) for i in ids), default=0)
        size = max((int(i.max()) for i in ids), default=-1) - self._least + 1
        self._longest = np.zeros(size, np.int64)  # by block: the length of the longest prompt that holds it; 0: none
        self._chain = np.zeros(size, np.int64)  # and whose that is
        self._tails: dict[int, list[int]] = {}  # by its last block, the chains with this last prompt

    def known(self, request: Request) -> int:
        """How many leading blocks are in any prompt so far."""
        known = self._longest[self._at(request)] > 0
        return len(known) if known.all() else int(known.argmin())

    def chain_with(self, block: int) -> int:
        """Of the chains that hold this block, the one with the longest last prompt; the first of equals."""
        return int(self._chain[block - self._least])

    def tails_at(self, block: int) -> Sequence[int]:
        """The chains whose last prompt ends with this block, in the order of their numbers."""
        return self._tails.get(block, ())

    def move(self, chain: int, before: Request | None, request: Request) -> None:
        """Make ``request`` the last of a chain after ``before``."""
        if before is not None:
            self._tails[before.ids[-1]].remove(chain)
        insort(self._tails.setdefault(request.ids[-1], []), chain)
        at, length = self._at(request), len(request.ids)
        at = at[(self._longest[at] < length) | (self._longest[at] == length) & (self._chain[at] > chain)]
        self._longest[at] = length
        self._chain[at] = chain

    def _at(self, request: Request) -> npt.NDArray[np.int64]:
        return np.asarray(request.ids, np.int64) - self._least


def _grow(requests: list[Request]) -> list[Chain]:
    """Chains of extensions; every other request starts one, anchored where its prompt parts from one."""
    chains: list[Chain] = []
    paths = _Paths(requests)
    any_ids = False
    for request in requests:
        shared = paths.known(request) if request.ids else 0
        found = _extended(chains, paths, request, shared)
        if found is None and chains and not (request.ids and any_ids):
            found = 0  # nothing tells whose it is
        if found is None:
            anchor = chains[paths.chain_with(request.ids[shared - 1])].tail if shared else None
            found = len(chains)
            chains.append(Chain([], anchor, shared))
        chain = chains[found]
        chain.requests.append(request)
        if request.ids:
            paths.move(found, chain.tail, request)
            chain.tail = request
            any_ids = True
    return chains


def _extended(chains: list[Chain], paths: _Paths, request: Request, shared: int) -> int | None:
    """The chain with the longest last prompt that this one begins with; the first of equals."""
    latest = request.start_ns + EPSILON_NS
    for block in reversed(request.ids[:shared]):
        for number in paths.tails_at(block):
            tail = chains[number].tail
            if tail is not None and tail.model == request.model and tail.end_ns <= latest:
                return number
    return None


def _close_seams(chains: list[Chain]) -> None:
    """Give each chain that was never extended past a fork the fork that goes on from it."""
    forks: dict[int, list[Chain]] = {}  # by the identity of their anchor
    for chain in chains:
        if chain.anchor is not None:
            forks.setdefault(id(chain.anchor), []).append(chain)
    for chain in chains:
        while chain.requests and chain.tail is not None:
            tail = chain.tail
            waiting = [fork for fork in forks.get(id(tail), ()) if fork.requests and fork.anchor is tail]
            going_on = [fork for fork in waiting if _goes_on(fork, tail)]
            if not going_on:
                break
            chosen = max(going_on, key=lambda f: (f.shared, -f.requests[0].start_ns))  # the first of equals
            chain.requests += chosen.requests
            chain.tail, chosen.requests = chosen.tail, []
            assert chain.tail is not None
            for fork in waiting:
                if fork is not chosen and chain.tail.when < fork.requests[0].when:
                    fork.shared = _shared_after(chain.tail.ids, chosen.shared, fork)
                    fork.anchor = chain.tail
                    forks.setdefault(id(chain.tail), []).append(fork)


def _shared_after(ids: Sequence[int], kept: int, fork: Chain) -> int:
    """What a fork has in common with ``ids``, of which the first ``kept`` blocks are those of its anchor so far."""
    own = fork.requests[0].ids
    if fork.shared != kept:
        return min(fork.shared, kept)
    both = min(len(ids), len(own))
    return kept if kept >= both or ids[kept] != own[kept] else shared_blocks(ids, own)


def _goes_on(fork: Chain, tail: Request) -> bool:
    first = fork.requests[0]
    pause = first.start_ns - tail.end_ns
    return (
        pause >= -EPSILON_NS
        and first.model == tail.model
        and (pause <= SEAM_GAP_NS or 2 * fork.shared >= len(tail.ids))
    )
