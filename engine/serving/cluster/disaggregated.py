"""Two pools on one clock: workers that compute prompts, and workers that decode what comes from there.

A prompt is computed and its first token sampled by a prefill worker; then its KV goes to a decode worker, which has to
have a seat and room for it. Links are not shared: a transfer lasts as long as it would alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from heapq import heappop, heappush
from typing import Literal, NamedTuple

import numpy as np

from engine.serving.clock import check_time
from engine.serving.cluster.merge import merge_records
from engine.serving.cluster.replica import NEVER, Replica
from engine.serving.cluster.routers import Router
from engine.serving.contract import Columns, Finished, PoolWorker, ServedRequest, ServerConfig, ServerRecord
from engine.serving.record import check_fits
from engine.timing.contract import PassTimeSource


@dataclass(frozen=True, slots=True)
class Link:
    """The way from a prefill worker to a decode worker.

    ``gb_per_s`` is in 10^9 bytes (0: any amount at once). ``whole``: all tokens of a prompt are sent, not only those
    that the destination lacks.
    """

    bytes_per_token: int
    gb_per_s: float
    latency_ns: int
    whole: bool = False

    def duration_ns(self, tokens: int) -> int:
        """Latency, and tokens x bytes per token / bandwidth."""
        return self.latency_ns + (round(tokens * self.bytes_per_token / self.gb_per_s) if self.gb_per_s else 0)


Hold = Literal["source", "destination"]
"""Who holds blocks first: the worker that computed the prompt, or the one that is to get it."""


TRANSFER_COLUMNS = (
    "index",
    "prefill_worker",
    "decode_worker",
    "prefill_rank",
    "decode_rank",
    "held_ns",
    "reserved_ns",
    "start_ns",
    "end_ns",
    "released_ns",
    "admitted_ns",
    "tokens",
)
NO_TIME = -(1 << 62)
"""Stands for a time that never came in the record's ``transfers``: warm-up is negative."""
_COUNTS = ("recomputed_tokens", "preemptions", "output_tokens", "worker", "dp_rank")
"""Columns of requests that are 0 where nothing happened."""


class _Stage(IntEnum):
    """Where a request is."""

    PREFILL = 0  # waits or runs there
    WAITING = 1  # for a seat and room at its decode worker
    SENT = 2  # on the way
    DECODE = 3  # waits or runs there
    OVER = 4


@dataclass(slots=True)
class _Request:
    """A request on its way through both pools; times are None until they are known."""

    served: ServedRequest
    prefill: int  # replica
    decode: int  # replica; -1 where it has no second token
    stage: _Stage
    prefill_rank: int = -1  # -1: not known yet
    decode_rank: int = -1
    received_ns: int | None = None
    cached_tokens: int = -1  # at the prefill worker
    missing: int = -1  # tokens that the decode worker lacks
    held_ns: int | None = None  # prompt computed; its blocks wait for the transfer
    reserved_ns: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    released_ns: int | None = None
    gone: bool = False  # given up while its last pass here was under way


class _Event(NamedTuple):
    """At equal times passes end before transfers do, and workers go on after both."""

    time_ns: int
    is_transfer: bool
    replica: int
    order: int
    request: int
    finished: Finished | None


class Disaggregated:
    """A prefill pool and a decode pool (see :class:`engine.serving.contract.Server`).

    Workers take what came to them between two of their passes, and none starts a pass before everything is known that
    can reach it by then (see :class:`engine.serving.cluster.server.Cluster`).

    Args:
        prefill: the workers that compute prompts.
        decode: the workers that decode.
        routers: which worker of each pool gets a request. The decode worker is chosen when its prompt is computed, or
            when it arrives where the destination reserves first. A worker with ranks chooses one when it looks at the
            request for the first time, and it waits for that one.
        config: limits of a decode worker, which has to be able to finish a request.
        timing: how long passes take.
        link: the way between the pools.
        hold: ``source``, a prompt is computed, its blocks stay held, and the decode worker then reserves; the transfer
            starts with that. ``destination``, the decode worker reserves first, and the prefill worker gets the request
            when it has; the transfer starts when the prompt is computed.
    """

    def __init__(
        self,
        prefill: Sequence[PoolWorker],
        decode: Sequence[PoolWorker],
        routers: tuple[Router, Router],
        config: ServerConfig,
        timing: PassTimeSource,
        link: Link,
        hold: Hold,
    ) -> None:
        # Decode workers come first, and so go first at equal times: what they reserve may reach a prefill worker then.
        self._pools = [*decode, *prefill]
        self._replicas = [Replica(server, timing) for server in self._pools]
        self._decodes = len(decode)
        self._next = [NEVER] * len(self._replicas)
        self._bound = [NEVER] * len(self._replicas)
        self._prefill_router, self._decode_router = routers
        self._in_flight = [0] * len(self._replicas)
        self._config = config
        self._link = link
        self._hold = hold
        self._requests: dict[int, _Request] = {}
        self._waiting: list[deque[int]] = [deque() for _ in decode]  # for a seat and room, by decode worker
        self._joins: list[list[int]] = [[] for _ in decode]
        self._releases: list[list[int]] = [[] for _ in self._replicas]
        self._events: list[_Event] = []
        self.dropped_ns: dict[int, int] = {}

    @property
    def has_work(self) -> bool:
        """Whether anything waits, runs, is on its way or is to be reported."""
        return bool(self._events) or min(self._next) < NEVER

    @property
    def next_ns(self) -> int:
        """When something happens next, if nothing comes."""
        return min(self._events[0].time_ns if self._events else NEVER, min(self._next))

    # -- what the client does ----------------------------------------------------------------------------------

    def receive(self, request: ServedRequest, now_ns: int) -> None:
        """Route a request that arrives now.

        Raises:
            GapscopeError: it can never fit the pool of a decode worker.
        """
        has_more = request.output_tokens > 1
        if has_more:
            check_fits(request, self._config)
        prefill = self._decodes + self._prefill_router.choose(request, self._in_flight[self._decodes :])
        state = _Request(request, prefill, -1, _Stage.PREFILL)
        self._requests[request.index] = state
        if has_more and self._hold == "destination":
            self._ask(state, now_ns)
        else:
            self._to_prefill(state, now_ns)

    def abort(self, index: int, now_ns: int) -> None:
        """Drop a request wherever it is; what it holds is let go between two passes of who holds it."""
        state = self._requests[index]
        if state.stage == _Stage.OVER or state.gone:
            return
        ending = [event for event in self._events if event.request == index and event.finished is not None]
        if ending:  # its last pass in this pool is under way: it is over with that
            state.gone = True
            self.dropped_ns[index] = ending[0].time_ns
            return
        self._drop(state, now_ns)

    def _drop(self, state: _Request, now_ns: int) -> None:
        """Let go of a request that no pass is finishing."""
        index, stage = state.served.index, state.stage
        holders = []
        if stage == _Stage.WAITING:
            self._waiting[state.decode].remove(index)
            self._pools[state.decode].withdraw(index)
            self._in_flight[state.decode] -= 1
        elif state.decode >= 0:
            holders.append(state.decode)
            self._in_flight[state.decode] -= 1
        if stage == _Stage.PREFILL:
            self._in_flight[state.prefill] -= 1
        if stage < _Stage.DECODE and (stage == _Stage.PREFILL or state.held_ns is not None):
            holders.append(state.prefill)
            if state.held_ns is not None:
                state.released_ns = max(self._replicas[state.prefill].ready_ns, now_ns)
        if stage == _Stage.SENT:
            state.end_ns = None
        self.dropped_ns[index] = max(
            (max(self._replicas[number].ready_ns, now_ns) for number in holders), default=now_ns
        )
        for number in holders:
            self._replicas[number].aborts.append(index)
            self._wake(number, now_ns)
        state.stage = _Stage.OVER

    # -- from pool to pool -------------------------------------------------------------------------------------

    def _to_prefill(self, state: _Request, now_ns: int) -> None:
        """The prefill worker gets the request: its prompt and one token."""
        served, has_more = state.served, state.served.output_tokens > 1
        state.stage = _Stage.PREFILL
        self._in_flight[state.prefill] += 1
        self._replicas[state.prefill].arrivals.append(replace(served, output_tokens=1, keeps_blocks=has_more))
        self._wake(state.prefill, now_ns)

    def _ask(self, state: _Request, now_ns: int) -> None:
        """The request waits for a seat and room at a decode worker."""
        state.decode = self._decode_router.choose(state.served, self._in_flight[: self._decodes])
        state.stage = _Stage.WAITING
        self._in_flight[state.decode] += 1
        self._waiting[state.decode].append(state.served.index)
        self._wake(state.decode, now_ns)

    def _prefilled(self, state: _Request, done: Finished) -> list[Finished]:
        """A prompt is computed; returns what its client is told."""
        now = done.end_ns
        self._in_flight[state.prefill] -= 1
        state.cached_tokens = done.cached_tokens
        if state.served.output_tokens == 1:
            state.stage = _Stage.OVER
            return [] if state.gone else [done]
        state.held_ns = now
        state.prefill_rank = self._pools[state.prefill].rank_for(state.served)
        if state.gone:
            state.stage = _Stage.SENT
            self._drop(state, now)
        elif self._hold == "source":
            self._ask(state, now)
        else:
            self._send(state, now)
        return []

    def _reserve(self, number: int, now_ns: int) -> None:
        """A decode worker between two passes: who waits for room on a rank of it, first come, first served there."""
        server, full = self._pools[number], set[int]()
        for index in list(self._waiting[number]):
            state = self._requests[index]
            if state.decode_rank < 0:  # it looks at the request for the first time
                self._take_note(index, now_ns)
                state.decode_rank = server.rank_for(state.served)
            if state.decode_rank in full:
                continue
            held = server.reserve(state.served, now_ns)
            if held is None:
                full.add(state.decode_rank)
                continue
            self._waiting[number].remove(index)
            self._replicas[number].forget_plan()
            state.reserved_ns = now_ns
            state.missing = state.served.prompt_tokens - held
            if self._hold == "source":
                self._send(state, now_ns)
            else:
                self._to_prefill(state, now_ns)

    def _send(self, state: _Request, now_ns: int) -> None:
        """The transfer starts."""
        state.stage = _Stage.SENT
        state.start_ns = now_ns
        tokens = state.served.prompt_tokens if self._link.whole else state.missing
        state.end_ns = now_ns + self._link.duration_ns(tokens)
        check_time(state.end_ns)
        heappush(self._events, _Event(state.end_ns, True, state.decode, 0, state.served.index, None))

    def _arrived(self, state: _Request, now_ns: int) -> None:
        """The transfer has ended: the source lets go, the request decodes."""
        state.stage = _Stage.DECODE
        index = state.served.index
        state.released_ns = max(now_ns, self._replicas[state.prefill].ready_ns)
        self._releases[state.prefill].append(index)
        self._wake(state.prefill, now_ns)
        self._joins[state.decode].append(index)
        self._wake(state.decode, now_ns)

    # -- time --------------------------------------------------------------------------------------------------

    def _wake(self, number: int, now_ns: int) -> None:
        """Have a worker look at what came now: at once if it is idle, after its pass if not."""
        at = max(self._replicas[number].ready_ns, now_ns)
        self._next[number] = min(self._next[number], at)
        self._bound[number] = at if number < self._decodes else at + 1

    def advance(self, now_ns: int, until_ns: int | None) -> tuple[int, list[Finished]]:
        """Run the workers until something has finished everywhere, or none may start a pass before ``until_ns``.

        Returns the time that was reached, the end of what finished included.
        """
        until = NEVER if until_ns is None else until_ns
        starts, events = self._next, self._events
        while True:
            start = min(starts)
            if events and events[0].time_ns <= min(start, until):
                at = events[0].time_ns
                finished: list[Finished] = []
                while events and events[0].time_ns == at:
                    finished += self._happen(heappop(events))
                if finished:
                    return at, finished
            elif start >= until:
                return (now_ns if until_ns is None else until_ns), []
            else:
                self._go_on(starts.index(start), start, until)

    def _happen(self, event: _Event) -> list[Finished]:
        """A pass or a transfer ends; returns what clients are told."""
        state = self._requests[event.request]
        done = event.finished
        if done is None:
            if state.stage == _Stage.SENT:  # not given up meanwhile
                self._arrived(state, event.time_ns)
            return []
        self._replicas[event.replica].passes = done.pass_index + 1
        if event.replica >= self._decodes:
            told = self._prefilled(state, done)
        else:
            self._in_flight[state.decode] -= 1
            state.stage = _Stage.OVER
            assert state.end_ns is not None
            told = [] if state.gone else [replace(done, first_token_ns=state.end_ns, cached_tokens=state.cached_tokens)]
        passes = sum(replica.passes for replica in self._replicas)
        return [replace(one, pass_index=passes - 1) for one in told]

    def _go_on(self, number: int, start_ns: int, until_ns: int) -> None:
        """A worker takes what came, and runs passes until another could have something for it."""
        starts, bounds, events = self._next, self._bound, self._events
        starts[number] = bounds[number] = NEVER
        replica, is_decode = self._replicas[number], number < self._decodes
        for request in replica.arrivals:
            self._take_note(request.index, start_ns)
        self._tell(number, start_ns)
        if is_decode:
            if self._waiting[number]:
                self._reserve(number, start_ns)
            if events and events[0].time_ns <= start_ns:  # what takes no time is there before the pass
                starts[number] = bounds[number] = start_ns
                return
        if not replica.server.has_work:
            return
        # What another finishes, what is on its way and what is to be reported may be answered at that time.
        limit = min(until_ns, min(bounds), events[0].time_ns if events else NEVER)
        if is_decode and self._waiting[number]:
            limit = start_ns + 1  # it looks for room between any two passes
        for order, done in enumerate(replica.run(start_ns, max(limit, start_ns + 1))):
            heappush(events, _Event(done.end_ns, False, number, order, done.index, done))
        if replica.server.has_work and not replica.stalled:
            replica.look_ahead()
            starts[number], bounds[number] = replica.ready_ns, replica.bound_ns
            if is_decode and self._waiting[number]:
                bounds[number] = replica.ready_ns
        elif is_decode and self._waiting[number]:
            starts[number] = bounds[number] = replica.ready_ns if not replica.stalled else NEVER

    def _tell(self, number: int, now_ns: int) -> None:
        """What came to a worker since its pass before, and what left."""
        replica, server = self._replicas[number], self._pools[number]
        for index in self._releases[number]:
            server.release(index, now_ns)
        if number < self._decodes and self._joins[number]:
            for index in self._joins[number]:
                if self._requests[index].stage == _Stage.DECODE:
                    server.join(index, now_ns)
            self._joins[number].clear()
            replica.forget_plan()
        if self._releases[number]:
            self._releases[number].clear()
            replica.forget_plan()
        replica.take(now_ns)

    def _take_note(self, index: int, now_ns: int) -> None:
        """An engine looks at a request for the first time."""
        state = self._requests[index]
        if state.received_ns is None:
            state.received_ns = now_ns

    # -- the record --------------------------------------------------------------------------------------------

    def finish(self) -> ServerRecord:
        """What all workers did: the prefill workers, then the decode workers, which are numbered after them."""
        decode, prefill = self._replicas[: self._decodes], self._replicas[self._decodes :]
        records = [replica.server.finish() for replica in (*prefill, *decode)]
        record = merge_records([(number, 0, own) for number, own in enumerate(records)])
        self._complete(record.requests)
        prompts = sum(len(own.admissions["seq"]) for own in records[: len(prefill)])
        admissions = record.admissions
        before = np.bincount(admissions["index"][:prompts], minlength=len(record.requests["received_ns"]))
        admissions["ordinal"][prompts:] += before[admissions["index"][prompts:]]
        joined = np.flatnonzero(~admissions["is_readmission"][prompts:]) + prompts
        admitted = dict(zip(admissions["index"][joined].tolist(), admissions["time_ns"][joined].tolist(), strict=True))
        return replace(record, transfers=self._transfers(admitted))

    def _complete(self, requests: Columns) -> None:
        """When each request was received, and rows of those that came to no worker."""
        missing = len(self._requests) - len(requests["received_ns"])
        for name, column in requests.items():
            none = 0 if column.dtype == np.bool_ or not column.size or name in _COUNTS else -1
            requests[name] = np.concatenate([column, np.full(max(missing, 0), none, column.dtype)])
        for index, state in self._requests.items():
            if state.received_ns is not None:
                requests["received_ns"][index] = state.received_ns
                requests["aborted"][index] |= index in self.dropped_ns and not state.gone

    def _transfers(self, admitted: dict[int, int]) -> Columns:
        """See :class:`engine.serving.contract.ServerRecord`."""
        prompts = len(self._replicas) - self._decodes
        rows = []
        for index, state in sorted(self._requests.items()):
            if state.held_ns is None and state.reserved_ns is None:
                continue
            times = [state.held_ns, state.reserved_ns, state.start_ns, state.end_ns, state.released_ns]
            tokens = state.served.prompt_tokens if self._link.whole else state.missing
            workers = state.prefill - self._decodes, state.decode + prompts if state.decode >= 0 else -1
            ranks = state.prefill_rank, state.decode_rank
            known = [NO_TIME if time is None else time for time in (*times, admitted.get(index))]
            rows.append((index, *workers, *ranks, *known, -1 if state.start_ns is None else tokens))
        table = np.array(rows, np.int64).reshape(-1, len(TRANSFER_COLUMNS))
        return {name: table[:, position].copy() for position, name in enumerate(TRANSFER_COLUMNS)}
