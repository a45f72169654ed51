"""Attention data parallelism: ranks with schedulers and pools of their own whose passes start and end together.

The experts are shared, so no rank can go on before all have computed their tokens. A rank with nothing to do takes part
without a batch, which is no pass of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from engine.serving.cluster.merge import merge_records
from engine.serving.cluster.prices import PRICES, Price
from engine.serving.cluster.routers import Router, make_router
from engine.serving.contract import Batch, Finished, Pooled, ServedRequest, Server, ServerRecord, Stepped
from engine.timing.contract import PassTimeSource
from engine.timing.hidden import gap_ns

_NEVER = 1 << 62


def in_lockstep(knobs: Mapping[str, Any], timing: PassTimeSource, make: Callable[[], Server]) -> Server:
    """The engine that the knobs describe: ``attention_dp`` ranks of what ``make`` gives, or the one itself."""
    count = int(knobs["attention_dp"])
    if count == 1:
        return make()
    router = make_router(
        knobs["dp_router"], count, knobs["block_size"], knobs["kv_blocks"] - 1, knobs["router_overlap_weight"]
    )
    ranks = [cast(Stepped, make()) for _ in range(count)]
    return LockstepServer(ranks, timing, knobs["dp_price"], router, knobs["prefill_schedule_interval"])


class LockstepServer:
    """One engine of several ranks (see :class:`engine.serving.contract.Server`).

    A rank that only decodes for a while is left alone for as long: what it took part in is told to it afterwards. With
    ranks that are :class:`engine.serving.contract.Pooled` it is a worker of a pool; a rank on which nobody has room
    takes part without a batch, and where that is so on all of them there is no step, and it is ``stalled``.

    Args:
        ranks: their schedulers, with one timing source that only this server asks.
        timing: how long passes take.
        price: ``slowest``, every rank's batch is priced for itself and the longest counts; ``combined``, requests and
            tokens of all ranks are priced as one batch, since all experts see them, that reads the KV of the rank with
            most, as each attends over its own.
        router: which rank serves a request.
        interval: ranks whose requests decode take prompts in every so many steps only, in the same ones.
    """

    def __init__(
        self, ranks: Sequence[Stepped], timing: PassTimeSource, price: Price, router: Router, interval: int = 1
    ) -> None:
        self._ranks = [_Rank(rank) for rank in ranks]
        self._timing = timing
        self._price, self._price_run = PRICES[price]
        self._router = router
        self._in_flight = [0] * len(ranks)
        self._rank_of: dict[int, int] = {}  # of each request that is in flight, or holds blocks here
        self._keepers: set[int] = set()  # whose blocks are to stay held when they finish
        self._kept: set[int] = set()  # who finished and holds blocks
        self._is_pooled = all(isinstance(rank, Pooled) for rank in ranks)
        self.stalled = False
        self._starts: list[int] = []  # of every step
        self._durations: list[int] = []
        self._next_ns = 0  # when the next step may start
        self._interval = interval
        self._woken = 0  # the first step since the engine was idle

    @property
    def has_work(self) -> bool:
        """Whether anything waits or runs on any rank."""
        return any(rank.server.has_work for rank in self._ranks)

    def receive(self, request: ServedRequest, now_ns: int) -> None:
        """Put a request into the queue of a rank.

        Raises:
            GapscopeError: it can never fit the pool of a rank.
        """
        number = self.rank_for(request)
        self._disturb(number)
        self._ranks[number].server.receive(request, now_ns)
        if request.keeps_blocks:
            self._keepers.add(request.index)

    def abort(self, index: int, now_ns: int) -> None:
        """Drop a waiting or running request; a finished one that holds nothing is left alone."""
        number = self._rank_of.pop(index, None)
        if number is not None:
            self._disturb(number)
            self._ranks[number].server.abort(index, now_ns)
            self._in_flight[number] -= index not in self._kept
            self._kept.discard(index)
            self._keepers.discard(index)

    # -- as a worker of a pool ---------------------------------------------------------------------------------

    def rank_for(self, request: ServedRequest) -> int:
        """See :class:`engine.serving.contract.PoolWorker`."""
        number = self._rank_of.get(request.index)
        if number is None:
            number = self._rank_of[request.index] = self._router.choose(request, self._in_flight)
            self._in_flight[number] += 1
        return number

    def withdraw(self, index: int) -> None:
        """See :class:`engine.serving.contract.PoolWorker`."""
        number = self._rank_of.pop(index, None)
        if number is not None:
            self._in_flight[number] -= 1

    def reserve(self, request: ServedRequest, now_ns: int) -> int | None:
        """See :class:`engine.serving.contract.PoolWorker`."""
        return self._pooled(self.rank_for(request)).reserve(request, now_ns)

    def join(self, index: int, now_ns: int) -> None:
        """See :class:`engine.serving.contract.PoolWorker`."""
        self._pooled(self._rank_of[index]).join(index, now_ns)

    def release(self, index: int, now_ns: int) -> None:
        """See :class:`engine.serving.contract.PoolWorker`."""
        if index in self._kept:
            self._kept.remove(index)
            self._pooled(self._rank_of.pop(index)).release(index, now_ns)

    def _pooled(self, number: int) -> Pooled:
        """A rank of a worker of a pool, about to change between two steps."""
        self._disturb(number)
        return cast(Pooled, self._ranks[number].server)

    # -- steps -------------------------------------------------------------------------------------------------

    def advance(self, now_ns: int, until_ns: int | None) -> tuple[int, list[Finished]]:
        """Take steps until a request finishes or the next would start at or after ``until_ns``."""
        until = _NEVER if until_ns is None else until_ns
        self.stalled = False
        ranks = [rank for rank in self._ranks if rank.server.has_work]
        if not ranks:
            raise ValueError("advance: nothing waits and nothing runs")
        for rank in ranks:
            if rank.until <= len(self._starts):
                rank.look(len(self._starts), now_ns)
        while True:
            step = len(self._starts)
            together = min([rank.until for rank in ranks]) - step
            now_ns = self._go_on(ranks, together, now_ns, until) if together else self._one(ranks, now_ns)
            if self.stalled:
                return now_ns, []
            self._next_ns = now_ns
            step = len(self._starts)
            finished: list[Finished] = []
            settled = [rank for rank in ranks if rank.until <= step]
            for rank in settled:
                finished += self._settle(rank)
            if len(settled) == len(ranks):
                self._next_ns = now_ns = now_ns + min(rank.server.late_ns for rank in ranks)
            for rank in settled:
                if rank.server.has_work:
                    rank.look(step, now_ns)
            ranks = [rank for rank in ranks if rank.server.has_work]
            for done in finished:
                self._leave(done.index)
            if not self.has_work:
                self._woken = step
            if finished or now_ns >= until or not self.has_work:
                return now_ns, finished

    def finish(self) -> ServerRecord:
        """Everything that happened, as arrays, rank by rank; ``step`` numbers the steps of all."""
        for number in range(len(self._ranks)):
            self._disturb(number)
        record = merge_records([(0, number, rank.server.finish()) for number, rank in enumerate(self._ranks)])
        record.passes["step"] = np.concatenate([np.array(rank.steps, np.int64) for rank in self._ranks])
        return record

    def _go_on(self, ranks: Sequence[_Rank], count: int, now_ns: int, until_ns: int) -> int:
        """All ranks only decode; returns when the next step may start."""
        timing, step = self._timing, len(self._starts)
        decoding = [rank.decoding for rank in ranks]
        ahead = [rank.contexts[step - rank.since : step - rank.since + count] for rank in ranks]
        for duration in self._price_run(timing, decoding, ahead, now_ns, until_ns):
            self._starts.append(now_ns)
            self._durations.append(duration)
            now_ns += duration + gap_ns(timing, duration)
            if now_ns >= until_ns:
                break
        return now_ns

    def _one(self, ranks: Sequence[_Rank], now_ns: int) -> int:
        """A step in which some rank has to schedule; returns when the next may start."""
        step = len(self._starts)
        if self._interval > 1:
            for rank in ranks:
                rank.server.holds_prefills = (step - self._woken) % self._interval > 0
        batches = [
            (0, 0, 0, rank.decoding, rank.contexts[step - rank.since])
            if rank.until > step
            else rank.server.schedule(now_ns)
            for rank in ranks
        ]
        if self._is_pooled:
            ranks, batches = self._with_room(ranks, batches, now_ns)
            if self.stalled:
                return now_ns
        restored = [0 if rank.until > step else rank.server.restore_ns for rank in ranks]
        duration = self._price(self._timing, batches, restored)
        for rank in ranks:
            if rank.until <= step:
                rank.server.complete(now_ns, duration)
                rank.steps.append(step)
                rank.since = step + 1
        self._starts.append(now_ns)
        self._durations.append(duration)
        return now_ns + duration + gap_ns(self._timing, duration)

    def _with_room(
        self, ranks: Sequence[_Rank], batches: list[Batch], now_ns: int
    ) -> tuple[Sequence[_Rank], list[Batch]]:
        """Those ranks on which somebody has room, and their batches; the others sit the step out."""
        for at, rank in enumerate(ranks):
            if not _has_members(batches[at]):
                batches[at] = rank.server.schedule(now_ns)
                rank.sits_out = not _has_members(batches[at])
        taking = [at for at, rank in enumerate(ranks) if not rank.sits_out]
        self.stalled = not taking
        if self.stalled:
            for rank in ranks:
                rank.sits_out = False
        return [ranks[at] for at in taking], [batches[at] for at in taking]

    def _leave(self, index: int) -> None:
        """A request has finished."""
        self._in_flight[self._rank_of[index]] -= 1
        if index in self._keepers:
            self._keepers.remove(index)
            self._kept.add(index)
        else:
            del self._rank_of[index]

    def _settle(self, rank: _Rank) -> list[Finished]:
        """Tell a rank what it took part in; returns what finished there in the last step."""
        since, step = rank.since, len(self._starts)
        if rank.sits_out:
            rank.sits_out = False
            rank.since = rank.until = step
            return []
        if since < step:
            rank.server.skip(self._starts[since:step], self._durations[since:step])
            rank.steps += range(since, step)
        rank.since = rank.until = step
        return rank.server.let_go(self._next_ns)

    def _disturb(self, number: int) -> None:
        """A rank is about to change between two steps."""
        rank = self._ranks[number]
        if rank.until > len(self._starts):
            self._settle(rank)


class _Rank:
    """A scheduler, and for how long it only decodes.

    It was told of the steps before ``since``, and decodes until the step ``until`` with ``decoding`` requests, whose KV
    sums are ``contexts`` from ``since`` on. ``steps`` are those it took part in; it ``sits_out`` the present one where
    nobody has room.
    """

    __slots__ = ("contexts", "decoding", "server", "since", "sits_out", "steps", "until")

    def __init__(self, server: Stepped) -> None:
        self.server = server
        self.since = 0
        self.until = 0
        self.sits_out = False
        self.decoding = 0
        self.contexts: list[int] = []
        self.steps: list[int] = []

    def look(self, step: int, now_ns: int) -> None:
        """See what comes next, from ``step`` on, which starts at ``now_ns``."""
        self.server.begin(now_ns)
        count = self.server.quiet_passes()
        self.since, self.until = step, step + count
        if count:
            self.decoding = self.server.num_decoding
            self.contexts = list(self.server.contexts(count))


def _has_members(batch: Batch) -> bool:
    return bool(batch[0] or batch[3])
