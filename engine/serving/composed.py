"""Forms the batches that a recording holds, instead of scheduling.

Who is in a batch and how many tokens each computes is the recording's; admissions, preemptions and the pool follow from
that. A pass starts when the one before is over and everybody in its batch has arrived. What the recording leaves
unfinished goes on under the rules of :class:`~engine.serving.plain.PlainServer` after its last batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

from engine.serving.contract import ServerConfig
from engine.serving.members import Member, Members
from engine.serving.plain import PlainServer, Request, Work
from engine.timing.contract import PassTimeSource


class ComposedServer(PlainServer):
    """One replica whose batches are given.

    ``batches`` has the members of every pass, by the index under which the request will be received, in order.
    ``departures`` counts in words what could not be done as recorded.
    """

    def __init__(self, config: ServerConfig, timing: PassTimeSource, batches: Members) -> None:
        super().__init__(config, timing)
        self.departures: Counter[str] = Counter()
        self._batches: list[list[Member]] = []
        self._places: dict[int, list[int]] = {}  # request -> the batches that have it
        self._before: dict[int, list[int]] = {}  # and its tokens computed before each
        self._next = 0
        last = None
        columns = (batches.pass_index, batches.index, batches.computed_before, batches.scheduled_tokens)
        for at, index, before, tokens in zip(*(column.tolist() for column in columns), strict=True):
            if tokens < 1:
                continue
            if at != last:
                self._batches.append([])
                last = at
            self._batches[-1].append((index, before, tokens))
            self._places.setdefault(index, []).append(len(self._batches) - 1)
            self._before.setdefault(index, []).append(before)

    @property
    def has_work(self) -> bool:
        """Whether the next batch can be formed."""
        while self._next < len(self._batches):
            batch = self._batches[self._next]
            if any(index not in self._requests for index, _, _ in batch):
                return False  # somebody has not arrived
            if any(self._has_to_do(self._requests[index]) for index, _, _ in batch):
                return True
            self._next += 1
            self.departures["recorded batches whose requests were all gone"] += 1
        return super().has_work

    def _has_to_do(self, request: Request) -> bool:
        return not request.aborted and request.sampled < request.output_tokens

    def _schedule(self, now_ns: int) -> list[Work]:
        if self._next == len(self._batches):
            self.departures["passes after the last recorded batch"] += 1
            return super()._schedule(now_ns)
        items = self._batches[self._next]
        self._preempt_absent(items, now_ns)
        batch = []
        for index, before, tokens in items:
            request = self._requests[index]
            if not self._has_to_do(request):
                self.departures["members that had finished or gone"] += 1
                continue
            resumed = request not in self._running and request.admissions > 0
            before = min(before, request.prompt_tokens + request.output_tokens - 2)
            self._bring_to(request, before, now_ns)
            batch.append(self._compute(request, min(tokens, request.known - before), resumed))
        self._next += 1
        return batch

    def _preempt_absent(self, items: list[Member], now_ns: int) -> None:
        """Take the blocks of who is left out and does not go on later where it stopped.

        Whoever was admitted after one that was preempted was preempted before it. And where there are not enough blocks
        for the running requests of the batch and for the last that is left out, that one gave up its own, even if it
        found all of them again.
        """
        present = {index: before + tokens for index, before, tokens in items}
        absent = [request for request in self._running if request.index not in present]
        if not absent:
            return
        goes_on = [self._goes_on(request) for request in absent]
        stay = goes_on.index(False) if False in goes_on else len(absent)
        running = [request for request in self._running if request.index in present]
        needed = sum(max(0, self._blocks(present[r.index]) - len(r.blocks)) for r in running)
        budget = self.config.max_num_batched_tokens - sum(tokens for _, _, tokens in items)
        while absent and (len(absent) > stay or needed + self._next_blocks(absent[-1], budget) > self.pool.num_free):
            victim = absent.pop()
            self._running.remove(victim)
            self._preempt(victim, now_ns)

    def _next_blocks(self, request: Request, budget: int) -> int:
        """Blocks that a running request would take to compute what ``budget`` allows."""
        tokens = self._chunk(request.known - request.computed, max(0, budget))
        return self._blocks(request.computed + tokens) - len(request.blocks)

    def _goes_on(self, request: Request) -> bool:
        places = self._places[request.index]
        later = bisect_right(places, self._next)
        return later < len(places) and self._before[request.index][later] >= request.computed

    def _bring_to(self, request: Request, before: int, now_ns: int) -> None:
        """Make a request run with ``before`` tokens computed, and what it must have sampled for that."""
        if request in self._running and before < request.computed:
            self._running.remove(request)
            self._preempt(request, now_ns)
        if request not in self._running:
            self._waiting.remove(request)
            self._admit(request, self._hits(request)[: before // self.config.block_size], before, now_ns)
        elif before > request.computed:
            self.departures["tokens that no recorded batch computes"] += before - request.computed
            self._fill(request, before)
            request.stretch = None  # the passes in between are not recorded
        request.sampled = max(request.sampled, before + 1 - request.prompt_tokens)

    def _fill(self, request: Request, computed: int, drafts: int = 0) -> None:
        short = self._blocks(computed) - len(request.blocks) - self.pool.num_free
        if short > 0:  # the recorded pool held it: somebody shared or let go what is held here
            self.departures["blocks beyond the pool"] += short
            self.pool.grow(short)
        super()._fill(request, computed, drafts)
