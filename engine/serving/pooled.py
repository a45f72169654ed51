"""The plain core in a pool of its own: it keeps prompts for their way, or decodes what came on it."""

from __future__ import annotations

from collections import deque

from engine.serving.contract import ServedRequest, ServerConfig, ServerRecord
from engine.serving.one_rank import OneRank
from engine.serving.plain import PlainServer, Request, Work
from engine.serving.record import count_to_last_pass
from engine.serving.variants import VariantServer
from engine.timing.contract import PassTimeSource


class PooledPlainServer(OneRank, PlainServer):
    """See :class:`engine.serving.contract.Pooled`."""

    def __init__(self, config: ServerConfig, timing: PassTimeSource) -> None:
        super().__init__(config, timing)
        self._keepers: set[int] = set()  # whose blocks stay held when they finish
        self._kept: dict[int, Request] = {}
        self._reserved: dict[int, Request] = {}
        self._joining: deque[Request] = deque()
        self._came: list[int] = []  # whose first token was sampled elsewhere

    @property
    def has_work(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self._joining) or super().has_work

    def receive(self, request: ServedRequest, now_ns: int) -> None:
        """See :class:`engine.serving.contract.Server`."""
        super().receive(request, now_ns)
        if request.keeps_blocks:
            self._keepers.add(request.index)

    def release(self, index: int, now_ns: int) -> None:
        """See :class:`engine.serving.contract.Pooled`."""
        request = self._kept.pop(index, None)
        if request is not None:
            self._release(request, now_ns)

    def reserve(self, request: ServedRequest, now_ns: int) -> int | None:
        """See :class:`engine.serving.contract.Pooled`."""
        taken = len(self._running) + len(self._reserved) + len(self._joining)
        if self._waiting or taken >= self.config.max_num_seqs:
            return None
        state = self._known(request, now_ns)
        state.sampled = 1
        hits = self._hits(state)
        if not self._fits(state, hits, state.prompt_tokens, 1):
            del self._requests[request.index]
            return None
        self.pool.reference(hits)
        state.blocks, state.registered = list(hits), len(hits)
        more, evicted = self.pool.take(self._blocks(state.known) - len(hits))
        state.blocks += more
        self._write_evictions(state, evicted)
        self._reserved[request.index] = state
        self._came.append(request.index)
        return len(hits) * self.config.block_size

    def join(self, index: int, now_ns: int) -> None:
        """See :class:`engine.serving.contract.Pooled`."""
        self._joining.append(self._reserved.pop(index))

    def abort(self, index: int, now_ns: int) -> None:
        """Drop a request wherever it is; one that has finished and kept nothing is left alone."""
        request = self._reserved.pop(index, None) or self._kept.pop(index, None)
        if request is None and self._requests[index] in self._joining:
            request = self._requests[index]
            self._joining.remove(request)
        if request is None:
            super().abort(index, now_ns)
            return
        request.aborted = True
        self._release(request, now_ns)

    def finish(self) -> ServerRecord:
        """Everything that happened here; the first token of who came belongs to where it was sampled."""
        record = super().finish()
        count_to_last_pass(record)
        record.requests["output_tokens"][self._came] -= 1
        return record

    def _admit_waiting(self, batch: list[Work], budget: int, now_ns: int) -> None:
        """First those who came with their prompts computed: they have room and a seat."""
        while self._joining and budget > 0:
            request = self._joining.popleft()
            hit_blocks = request.registered
            request.computed = request.most_computed = request.prompt_tokens
            self._enter(request, hit_blocks, hit_blocks * self.config.block_size, now_ns)
            batch.append(self._compute(request, 1, resumed=False))
            budget -= 1
        super()._admit_waiting(batch, budget, now_ns)

    def _retire(self, request: Request, end_ns: int) -> None:
        if request.index in self._keepers:
            request.stretch = None
            self._kept[request.index] = request
        else:
            super()._retire(request, end_ns)

    def _holders(self) -> list[Request]:
        return [*super()._holders(), *self._kept.values(), *self._reserved.values(), *self._joining]


class PooledVariantServer(PooledPlainServer, VariantServer):
    """The same for the rules that depart from vLLM's."""
