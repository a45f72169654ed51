"""The decoding requests as sums: what a pass needs to know of them without looking at each.

Two ways of growing. Without speculation every request grows by one token a pass, so three sums and a histogram of when
blocks are opened say everything. Under speculation each grows by its own bursts, which are drawn when it starts to
decode: its contexts and blocks are then added to columns by pass, and taken out again if it stops early.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

import numpy as np

from engine.serving.skipping.arrays import Ints
from engine.serving.skipping.request import Flight
from engine.serving.speculation import Speculation


class Decoding(Protocol):
    """What is known here of a request that decodes; see :class:`engine.serving.skipping.request.ScheduledRequest`."""

    index: int
    output_tokens: int
    computed: int
    sampled: int
    since: int
    slot: int
    row: int
    flight: Flight | None
    verified: int


Request = TypeVar("Request", bound=Decoding)


class Decodes(Protocol):
    """The requests that decode. Passes are named by their number; ``first`` is always the next one."""

    count: int
    width: int
    """Tokens that each computes in a pass."""
    context: int
    squares: int
    """Sum and sum of squares of the computed tokens before the next pass, where they are kept; else 0."""

    def start(self, request: Decoding, this: int) -> int:
        """The request, all computed, samples a token in pass ``this`` and decodes from the next on.

        Returns the pass that samples its last.
        """

    def end(self, request: Decoding, last: int) -> tuple[int, int]:
        """The request decodes no more; pass ``last`` was its last. Its state is brought up to date.

        Returns the blocks that it holds and how many of its tokens others may hit.
        """

    def contexts(self, first: int, count: int) -> Iterable[int]:
        """Sum of the computed tokens of all before each of the next passes."""

    def advance(self, first: int, count: int) -> None:
        """So many passes went by."""

    def context_of(self, this: int) -> int:
        """The sum of computed tokens of all before the next pass, which is ``this``."""

    def opened(self, first: int, count: int) -> int:
        """Blocks that are opened in the next passes, all requests together."""

    def opened_by(self, request: Decoding, this: int) -> int:
        """Blocks that one of them opens in pass ``this``."""

    def openers(self, requests: Iterable[Request], this: int) -> list[tuple[Request, int]]:
        """Those of some decoding requests that open blocks in pass ``this``, and how many."""

    def passes_within(self, first: int, blocks: int) -> int:
        """How many passes all of them can go on with so many blocks."""

    def held(self, request: Decoding, this: int) -> int:
        """Blocks that a request holds before pass ``this``."""

    def fixed(self, request: Decoding, this: int) -> int:
        """Tokens of a request whose blocks others may hit once pass ``this`` is scheduled, if they are full."""


class SteadyDecodes:
    """One token per request and pass.

    ``openings[s]`` says how many open a block in the passes p with p % block_size == s.
    """

    width = 1

    def __init__(self, block_size: int) -> None:
        self.count = 0
        self._block_size = block_size
        self.context = 0
        self.squares = 0
        self._openings = [0] * block_size

    def start(self, request: Decoding, this: int) -> int:
        """See :class:`Decodes`."""
        computed = request.computed
        self.count += 1
        self.context += computed
        self.squares += computed * computed
        request.slot = slot = (this + 1 - computed) % self._block_size
        self._openings[slot] += 1
        return this + request.output_tokens - request.sampled

    def end(self, request: Decoding, last: int) -> tuple[int, int]:
        """See :class:`Decodes`."""
        more = last - request.since
        self._openings[request.slot] -= 1
        request.computed = computed = request.computed + more
        request.sampled += more
        self.count -= 1
        self.context -= computed
        self.squares -= computed * computed
        return -(-computed // self._block_size), computed

    def contexts(self, first: int, count: int) -> Iterable[int]:
        """See :class:`Decodes`."""
        context, decodes = self.context, self.count
        return range(context, context + count * decodes, decodes) if decodes else (0,) * count

    def advance(self, first: int, count: int) -> None:
        """See :class:`Decodes`."""
        decodes = self.count
        self.squares += count * (2 * self.context + count * decodes)
        self.context += count * decodes

    def context_of(self, this: int) -> int:
        """See :class:`Decodes`."""
        return self.context

    def opened(self, first: int, count: int) -> int:
        """See :class:`Decodes`."""
        block_size, openings = self._block_size, self._openings
        if count == 1:
            return openings[first % block_size]
        rounds, rest = divmod(count, block_size)
        begin = first % block_size
        stop = begin + rest
        opened = rounds * self.count
        if stop <= block_size:
            return opened + sum(openings[begin:stop])
        return opened + sum(openings[begin:]) + sum(openings[: stop - block_size])

    def opened_by(self, request: Decoding, this: int) -> int:
        """See :class:`Decodes`."""
        return int(request.slot == this % self._block_size)

    def openers(self, requests: Iterable[Request], this: int) -> list[tuple[Request, int]]:
        """See :class:`Decodes`."""
        slot = this % self._block_size
        return [(request, 1) for request in requests if request.slot == slot]

    def passes_within(self, first: int, blocks: int) -> int:
        """See :class:`Decodes`."""
        rounds = blocks // self.count
        passes = rounds * self._block_size
        left = blocks - rounds * self.count
        while True:
            left -= self._openings[(first + passes) % self._block_size]
            if left < 0:
                return passes
            passes += 1

    def held(self, request: Decoding, this: int) -> int:
        """See :class:`Decodes`."""
        return -(-(request.computed + this - 1 - request.since) // self._block_size)

    def fixed(self, request: Decoding, this: int) -> int:
        """See :class:`Decodes`."""
        return request.computed + this - request.since


class BurstDecodes:
    """Every request samples as many tokens a pass as its drafts are accepted, drawn when it starts to decode.

    ``bursts`` is told, by ``row`` of each request that stopped decoding, what each of its passes sampled.
    """

    def __init__(self, block_size: int, bursts: dict[int, Ints], speculation: Speculation) -> None:
        self.count = self.context = self.squares = 0
        self.width = speculation.width
        self._block_size = block_size
        self._speculation = speculation
        self._bursts = bursts
        self._contexts = np.zeros(1024, np.int64)  # by pass, like the next
        self._openings = np.zeros(1024, np.int64)

    def start(self, request: Decoding, this: int) -> int:
        """See :class:`Decodes`."""
        bursts = self._speculation.until(request.index, request.verified, request.output_tokens - request.sampled)
        before = request.computed + np.cumsum(bursts) - bursts
        held = -(-(before + self.width) // self._block_size)
        request.flight = Flight(before, bursts, held)
        last = this + len(bursts)
        self._reach(last + 1)
        self._contexts[this + 1 : last + 1] += before
        self._openings[this + 1 : last + 1] += np.diff(held, prepend=-(-request.computed // self._block_size))
        self.count += 1
        return last

    def _reach(self, stop: int) -> None:
        """Make the columns long enough for the passes before ``stop``."""
        if stop > len(self._contexts):
            more = np.zeros(max(stop, 2 * len(self._contexts)) - len(self._contexts), np.int64)
            self._contexts = np.concatenate([self._contexts, more])
            self._openings = np.concatenate([self._openings, more])

    def end(self, request: Decoding, last: int) -> tuple[int, int]:
        """See :class:`Decodes`."""
        flight, since, done = request.flight, request.since, last - request.since
        assert flight is not None
        before, held = flight.before, flight.held
        if done < len(before):
            held_now = held[done - 1] if done else -(-request.computed // self._block_size)
            self._contexts[last + 1 : since + 1 + len(before)] -= before[done:]
            self._openings[last + 1 : since + 1 + len(before)] -= np.diff(held[done:], prepend=held_now)
        self._bursts[request.row] = flight.bursts[:done]
        request.flight = None
        request.verified += done
        self.count -= 1
        if not done:
            return -(-request.computed // self._block_size), request.computed
        fixed = int(before[done - 1]) + 1
        request.computed = int(before[done - 1] + flight.bursts[done - 1])
        request.sampled += int(flight.bursts[:done].sum())
        return int(held[done - 1]), fixed

    def contexts(self, first: int, count: int) -> Iterable[int]:
        """See :class:`Decodes`."""
        found: list[int] = self._contexts[first : first + count].tolist()
        return found

    def advance(self, first: int, count: int) -> None:
        """See :class:`Decodes`; the columns are by pass, so they only have to reach the next."""
        self._reach(first + count + 1)

    def context_of(self, this: int) -> int:
        """See :class:`Decodes`."""
        return int(self._contexts[this])

    def opened(self, first: int, count: int) -> int:
        """See :class:`Decodes`."""
        if count == 1:
            return int(self._openings[first])
        return int(self._openings[first : first + count].sum())

    def opened_by(self, request: Decoding, this: int) -> int:
        """See :class:`Decodes`."""
        assert request.flight is not None
        return int(request.flight.held[this - request.since - 1]) - self.held(request, this)

    def openers(self, requests: Iterable[Request], this: int) -> list[tuple[Request, int]]:
        """See :class:`Decodes`."""
        opened = ((request, self.opened_by(request, this)) for request in requests)
        return [(request, blocks) for request, blocks in opened if blocks]

    def passes_within(self, first: int, blocks: int) -> int:
        """See :class:`Decodes`."""
        needed = np.cumsum(self._openings[first:])
        return int(np.searchsorted(needed, blocks, side="right"))

    def held(self, request: Decoding, this: int) -> int:
        """See :class:`Decodes`."""
        flight, done = request.flight, this - request.since - 1
        assert flight is not None
        return int(flight.held[done - 1]) if done else -(-request.computed // self._block_size)

    def fixed(self, request: Decoding, this: int) -> int:
        """See :class:`Decodes`."""
        flight, at = request.flight, this - request.since - 1
        assert flight is not None
        return int(flight.before[at]) + 1 if at >= 0 else request.computed
