"""The event-skipping core in a pool of its own: the same record as :mod:`engine.serving.pooled`, much sooner."""

from __future__ import annotations

from collections import deque

from engine.serving.contract import Batch, ServedRequest, ServerConfig, ServerRecord
from engine.serving.one_rank import OneRank
from engine.serving.record import count_to_last_pass
from engine.serving.skipping.pool import Run
from engine.serving.skipping.request import ScheduledRequest
from engine.serving.skipping.server import SkippingServer
from engine.timing.contract import PassTimeSource


class PooledSkippingServer(OneRank, SkippingServer):
    """See :class:`engine.serving.contract.Pooled`."""

    def __init__(self, config: ServerConfig, timing: PassTimeSource) -> None:
        super().__init__(config, timing)
        self._keepers: set[int] = set()  # whose blocks stay held when they finish
        self._keeps = False  # so it is of who departs now
        self._kept: dict[int, tuple[ScheduledRequest, int, int]] = {}  # with its blocks, and those with content
        self._reserved: dict[int, ScheduledRequest] = {}
        self._joining: deque[ScheduledRequest] = deque()
        self._joined = self._joined_context = 0  # in the scheduled pass, and their computed tokens

    @property
    def has_work(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self._joining or self._waiting or self._running)

    def receive(self, request: ServedRequest, now_ns: int) -> None:
        """See :class:`engine.serving.contract.Server`."""
        super().receive(request, now_ns)
        if request.keeps_blocks:
            self._keepers.add(request.index)

    def release(self, index: int, now_ns: int) -> None:
        """See :class:`engine.serving.contract.Pooled`."""
        kept = self._kept.pop(index, None)
        if kept is not None:
            self._give_back(*kept, now_ns)

    def reserve(self, request: ServedRequest, now_ns: int) -> int | None:
        """See :class:`engine.serving.contract.Pooled`."""
        config, pool, content = self.config, self.pool, self._content
        if self._waiting or len(self._running) + len(self._reserved) + len(self._joining) >= config.max_num_seqs:
            return None
        super().receive(request, now_ns)
        state = self._waiting.pop()
        state.received_in = -1  # it never waits
        runs: list[Run] = []
        hits = idle = 0
        if config.prefix_caching:
            content.this = self._next_pass - 1
            runs, hits, idle = pool.match(
                content.path(state), request.prompt_tokens // config.block_size, content.settle
            )
        blocks = self._blocks(request.prompt_tokens + 1)
        if not self._reserve(state, blocks, hits, idle):
            content.retire(state)
            del self._requests[request.index]
            return None
        pool.reference(runs)
        pool.take(blocks - hits)
        state.held, state.keyed = runs, hits
        state.sampled = 1
        self._log.reserves += (self._next_pass, request.index, blocks - hits)
        self._reserved[request.index] = state
        return hits * config.block_size

    def join(self, index: int, now_ns: int) -> None:
        """See :class:`engine.serving.contract.Pooled`."""
        self._joining.append(self._reserved.pop(index))

    def abort(self, index: int, now_ns: int) -> None:
        """Drop a request wherever it is; one that has finished and kept nothing is left alone."""
        kept = self._kept.pop(index, None)
        request = self._requests[index]
        if kept is not None:
            self._give_back(*kept, now_ns)
        elif index in self._reserved or request in self._joining:
            if self._reserved.pop(index, None) is None:
                self._joining.remove(request)
            self._content.retire(request)
            self._give_back(request, self._blocks(request.prompt_tokens + 1), request.keyed, now_ns)
        else:
            super().abort(index, now_ns)
            return
        request.aborted_in = self._next_pass

    def quiet_passes(self) -> int:
        """See :class:`engine.serving.contract.Stepped`."""
        return 0 if self._joining else super().quiet_passes()

    def schedule(self, now_ns: int) -> Batch:
        """See :class:`engine.serving.contract.Pooled`."""
        self._joined = self._joined_context = 0
        prefills, new, read, decodes, context = super().schedule(now_ns)
        joined, computed = self._joined, self._joined_context
        return prefills - joined, new - joined, read - computed, decodes + joined, context + computed

    def finish(self) -> ServerRecord:
        """Everything that happened here."""
        record = super().finish()
        count_to_last_pass(record)
        return record

    def _admit_waiting(self, now_ns: int, budget: int, work: list[tuple[ScheduledRequest, int, int]]) -> None:
        """First those who came with their prompts computed: they have room and a seat."""
        while self._joining and budget > 0:
            request = self._joining.popleft()
            self._enter(request)
            work.append((request, request.prompt_tokens, 1))
            self._joined += 1
            self._joined_context += request.prompt_tokens
            budget -= 1
        super()._admit_waiting(now_ns, budget, work)

    def _enter(self, request: ScheduledRequest) -> None:
        """It runs from this pass on, and what came with it can be hit."""
        log, content, this = self._log, self._content, self._next_pass
        hits, block_size, prompt = request.keyed, self.config.block_size, request.prompt_tokens
        request.seq = seq = log.num_admissions
        log.num_admissions = seq + 1
        log.admissions += (request.index, 0, this, hits)
        log.joins += (seq, prompt // block_size - hits if request.total_blocks else 0)
        request.cached_tokens = hits * block_size
        request.admissions = 1
        request.computed = prompt + 1
        self._running[seq] = request
        if request.total_blocks:
            content.this = this
            content.path(request)
            content.claim(request)
            if request.computed // block_size > hits:
                content.register(request, request.computed // block_size, this)

    def _depart(self, request: ScheduledRequest, end_ns: int) -> None:
        self._keeps = request.index in self._keepers
        super()._depart(request, end_ns)
        self._keeps = False

    def _give_back(self, request: ScheduledRequest, blocks: int, keyed: int, now_ns: int) -> None:
        if self._keeps:
            self._kept[request.index] = request, blocks, keyed
        else:
            super()._give_back(request, blocks, keyed, now_ns)
