"""Which requests of a recorded session continue which: conversations told by how their prompts begin.

A recording of an agent lists requests in order of time, whichever of its conversations they belong to. A prompt that
begins with the whole prompt of an earlier request, of the same model and ended by then, continues it (an *extension*).
One that shares only a beginning starts a conversation of its own (a *fork*); but if what it parts from was never
continued, it is the continuation after all, with an edited or compacted context (a *seam*).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

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
    ids: array[int]
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


def _grow(requests: list[Request]) -> list[Chain]:
    """Chains of extensions; every other request starts one, anchored where its prompt parts from one."""
    chains: list[Chain] = []
    seen: set[int] = set()
    for request in requests:
        ids = request.ids
        found = _extended(chains, request) if ids else None
        if found is None and chains and (not ids or not seen):
            found = chains[0]  # nothing tells whose it is
        if found is None:
            found = Chain([])
            found.shared = bisect_left(range(len(ids)), True, key=lambda at: ids[at] not in seen)
            if found.shared:
                found.anchor = _parted_from(chains, ids, found.shared).tail
            chains.append(found)
        found.requests.append(request)
        if ids:
            known = found.shared if found.tail is None else len(found.tail.ids)
            seen.update(ids[known:])
            found.tail = request
    return chains


def _extended(chains: list[Chain], request: Request) -> Chain | None:
    """The chain with the longest last prompt that this one begins with."""
    ids, latest, best, longest = request.ids, request.start_ns + EPSILON_NS, None, 0
    for chain in chains:
        tail = chain.tail
        if tail is None:
            continue
        length = len(tail.ids)
        if (
            longest < length <= len(ids)
            and tail.ids[-1] == ids[length - 1]
            and tail.model == request.model
            and tail.end_ns <= latest
        ):
            best, longest = chain, length
    return best


def _parted_from(chains: list[Chain], ids: array[int], shared: int) -> Chain:
    """Of the chains that share the longest beginning, the one with the longest last prompt."""
    last = ids[shared - 1]
    sharing = [c for c in chains if c.tail and len(c.tail.ids) >= shared and c.tail.ids[shared - 1] == last]
    return max(sharing, key=lambda c: len(c.tail.ids) if c.tail else 0)


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
                    shared = shared_blocks(chain.tail.ids, fork.requests[0].ids)
                    if shared:
                        fork.anchor, fork.shared = chain.tail, shared
                        forks.setdefault(id(chain.tail), []).append(fork)


def _goes_on(fork: Chain, tail: Request) -> bool:
    first = fork.requests[0]
    pause = first.start_ns - tail.end_ns
    return (
        pause >= -EPSILON_NS
        and first.model == tail.model
        and (pause <= SEAM_GAP_NS or 2 * fork.shared >= len(tail.ids))
    )
