"""Attention data parallelism: ranks with schedulers and pools of their own whose passes start and end together.

The experts are shared, so no rank can go on before all have computed their tokens. A rank with nothing to do takes part
without a batch, which is no pass of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np

from engine.serving.cluster.merge import merge_records
from engine.serving.cluster.routers import Router, make_router
from engine.serving.contract import Batch, Finished, ServedRequest, Server, ServerRecord, Stepped
from engine.timing.contract import PassTimeSource

_NEVER = 1 << 62
Price = Literal["slowest", "combined"]


def in_lockstep(knobs: Mapping[str, Any], timing: PassTimeSource, make: Callable[[], Server]) -> Server:
    """The engine that the knobs describe: ``attention_dp`` ranks of what ``make`` gives, or the one itself."""
    count = int(knobs["attention_dp"])
    if count == 1:
        return make()
    router = make_router(
        knobs["dp_router"], count, knobs["block_size"], knobs["kv_blocks"] - 1, knobs["router_overlap_weight"]
    )
    return LockstepServer([cast(Stepped, make()) for _ in range(count)], timing, knobs["dp_price"], router)


class LockstepServer:
    """One engine of several ranks (see :class:`engine.serving.contract.Server`).

    Args:
        ranks: their schedulers, with one timing source that only this server asks.
        timing: how long passes take.
        price: ``slowest``, every rank's batch is priced for itself and the longest counts; ``combined``, requests and
            tokens of all ranks are priced as one batch, since all experts see them, that reads the KV of the rank with
            most, as each attends over its own.
        router: which rank serves a request.
    """

    def __init__(self, ranks: Sequence[Stepped], timing: PassTimeSource, price: Price, router: Router) -> None:
        self.ranks = ranks
        self._timing = timing
        self._price = _PRICES[price]
        self._router = router
        self._in_flight = [0] * len(ranks)
        self._rank_of: dict[int, int] = {}  # of each request in flight
        self._step = 0
        # By rank, its passes in runs that follow each other: step of the first, and how many.
        self._runs: list[list[list[int]]] = [[] for _ in ranks]

    @property
    def has_work(self) -> bool:
        """Whether anything waits or runs on any rank."""
        return any(rank.has_work for rank in self.ranks)

    def receive(self, request: ServedRequest, now_ns: int) -> None:
        """Put a request into the queue of a rank.

        Raises:
            GapscopeError: it can never fit the pool of a rank.
        """
        number = self._router.choose(request, self._in_flight)
        self.ranks[number].receive(request, now_ns)
        self._rank_of[request.index] = number
        self._in_flight[number] += 1

    def abort(self, index: int, now_ns: int) -> None:
        """Drop a waiting or running request; a finished one is left alone."""
        number = self._rank_of.pop(index, None)
        if number is not None:
            self.ranks[number].abort(index, now_ns)
            self._in_flight[number] -= 1

    def advance(self, now_ns: int, until_ns: int | None) -> tuple[int, list[Finished]]:
        """Take steps until a request finishes or the next would start at or after ``until_ns``."""
        if not self.has_work:
            raise ValueError("advance: nothing waits and nothing runs")
        until = _NEVER if until_ns is None else until_ns
        busy = [number for number, rank in enumerate(self.ranks) if rank.has_work]
        ranks = [self.ranks[number] for number in busy]
        for rank in ranks:
            rank.begin(now_ns)
        while True:
            quiet = [rank.quiet_passes() for rank in ranks]
            together = min(quiet)
            now_ns, steps = self._go_on(ranks, together, now_ns, until) if together else self._one(ranks, quiet, now_ns)
            for number in busy:
                self._note(number, steps)
            self._step += steps
            finished = [done for rank in ranks for done in rank.let_go(now_ns)]
            for done in finished:
                self._in_flight[self._rank_of.pop(done.index)] -= 1
            if finished or now_ns >= until or not self.has_work:
                return now_ns, finished

    def finish(self) -> ServerRecord:
        """Everything that happened, as arrays, rank by rank; ``step`` numbers the steps of all."""
        record = merge_records([(0, number, rank.finish()) for number, rank in enumerate(self.ranks)])
        runs = [run for own in self._runs for run in own]
        if runs:
            record.passes["step"] = np.concatenate([np.arange(first, first + count) for first, count in runs])
        return record

    def _go_on(self, ranks: Sequence[Stepped], count: int, now_ns: int, until_ns: int) -> tuple[int, int]:
        """All ranks only decode; returns when the next step may start, and how many were taken."""
        price, timing = self._price, self._timing
        decoding = [rank.num_decoding for rank in ranks]
        starts: list[int] = []
        durations: list[int] = []
        for contexts in zip(*(rank.contexts(count) for rank in ranks), strict=True):
            duration = price(timing, [(0, 0, 0, n, context) for n, context in zip(decoding, contexts, strict=True)])
            starts.append(now_ns)
            durations.append(duration)
            now_ns += duration + timing.between_ns
            if now_ns >= until_ns:
                break
        for rank in ranks:
            rank.skip(starts, durations)
        return now_ns, len(starts)

    def _one(self, ranks: Sequence[Stepped], quiet: Sequence[int], now_ns: int) -> tuple[int, int]:
        """A step in which some rank has to schedule."""
        batches = [
            (0, 0, 0, rank.num_decoding, _only(rank.contexts(1))) if passes else rank.schedule(now_ns)
            for rank, passes in zip(ranks, quiet, strict=True)
        ]
        duration = self._price(self._timing, batches)
        for rank, passes in zip(ranks, quiet, strict=True):
            if passes:
                rank.skip([now_ns], [duration])
            else:
                rank.complete(now_ns, duration)
        return now_ns + duration + self._timing.between_ns, 1

    def _note(self, number: int, steps: int) -> None:
        runs = self._runs[number]
        if runs and sum(runs[-1]) == self._step:
            runs[-1][1] += steps
        else:
            runs.append([self._step, steps])


def _slowest(timing: PassTimeSource, batches: Sequence[Batch]) -> int:
    pass_ns = timing.pass_ns
    return max([pass_ns(*batch) for batch in batches])


def _combined(timing: PassTimeSource, batches: Sequence[Batch]) -> int:
    prefills, new, read, decodes, context = zip(*batches, strict=True)
    return timing.pass_ns(sum(prefills), sum(new), max(read), sum(decodes), max(context))


_PRICES: dict[str, Callable[[PassTimeSource, Sequence[Batch]], int]] = {"slowest": _slowest, "combined": _combined}


def _only(values: Iterable[int]) -> int:
    (value,) = values
    return value
