"""The scheduler pass by pass, request by request: what the clever core is tested against.

vLLM's rules: one token budget per pass, running requests first and in order, then the waiting queue first come,
first served. A request is *running* from its admission until it has sampled its last token or is preempted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import numpy as np

from engine.serving import stepping
from engine.serving.block_pool import BlockPool, Eviction
from engine.serving.contract import Batch, Finished, ServedRequest, ServerConfig, ServerRecord
from engine.serving.host_tier import HostTier
from engine.serving.record import (
    ADMISSION_COLUMNS,
    CHUNK_COLUMNS,
    EVENT_COLUMNS,
    EVICT,
    PASS_ROW,
    PREEMPTION_COLUMNS,
    REQUEST_COLUMNS,
    STORE,
    STRETCH_COLUMNS,
    check_fits,
    columns,
    pass_columns,
    private_key,
)
from engine.timing.contract import PassTimeSource


@dataclass(slots=True, eq=False)
class Request:
    """A request's state. *Known* tokens are its prompt and what it has sampled; *computed* ones have KV."""

    index: int
    prompt_tokens: int
    output_tokens: int
    keys: list[int]  # content of every full block it can come to have
    received_ns: int
    forced_tokens: int | None = None  # reused at the first admission, whatever the pool holds
    sampled: int = 0
    computed: int = 0
    most_computed: int = 0  # before the last preemption, or now
    verified: int = 0  # passes in which drafts were verified
    blocks: list[int] = field(default_factory=list)
    registered: int = 0  # of its blocks, those whose content others can hit
    seq: int = -1
    admissions: int = 0
    preemptions: int = 0
    first_admit_ns: int = -1
    first_admit_pass: int = -1
    cached_tokens: int = -1
    recomputed_tokens: int = 0
    first_token_pass: int = -1
    first_token_ns: int = -1
    last_token_pass: int = -1
    aborted: bool = False
    stretch: list[int] | None = None  # the open row of ``stretches``
    bursts: list[int] = field(default_factory=list)  # tokens sampled in each of its passes

    @property
    def known(self) -> int:
        """Tokens that there are: prompt and sampled."""
        return self.prompt_tokens + self.sampled


class Work(NamedTuple):
    """What one request computes in one pass."""

    request: Request
    computed_before: int
    tokens: int
    resumed: bool  # admitted again in this pass
    drafts: int = 0  # tokens that are verified besides

    @property
    def is_decode(self) -> bool:
        """One token, all the others computed. A resumed request prefills, however few tokens it lacks."""
        request = self.request
        return (
            self.tokens == 1 and self.computed_before == request.known - 1 and request.sampled > 0 and not self.resumed
        )


class PlainServer:
    """One replica (see :class:`engine.serving.contract.Server`) that walks every request in every pass."""

    def __init__(self, config: ServerConfig, timing: PassTimeSource) -> None:
        self.config = config
        self.pool = BlockPool(config.usable_kv_blocks)
        self._timing = timing
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._requests: dict[int, Request] = {}
        self._num_indices = 0
        self._previous_end_ns: int | None = None
        self._ready_ns: int | None = None  # when the next pass starts if there is work
        self._passes: list[tuple[int, ...]] = []
        self._stretches: list[list[int]] = []
        self._chunks: list[tuple[int, ...]] = []
        self._admissions: list[tuple[int, ...]] = []
        self._preemptions: list[tuple[int, ...]] = []
        self._events: list[tuple[int, ...]] = []
        self._event_keys: list[int] = []
        self._bursts: list[list[int]] = []  # by stretch
        self._drafts = config.speculation.draft_tokens if config.speculation else 0
        self._host = HostTier(config.host, config.record_events) if config.host and config.prefix_caching else None
        self._restored_blocks = 0  # in the scheduled pass
        self._short = False  # somebody still waited when prompts could be taken last
        self._batch: list[Work] = []  # of the scheduled pass
        self._preempted_before = 0  # before it was scheduled
        self._finished: list[Finished] = []  # in the last pass

    @property
    def has_work(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self._waiting or self._running)

    # -- between passes ----------------------------------------------------------------------------------------

    def receive(self, request: ServedRequest, now_ns: int) -> None:
        """Put a request at the end of the waiting queue.

        Raises:
            GapscopeError: it has no token to compute or to sample, or can never fit the pool.
        """
        self._waiting.append(self._known(request, now_ns))

    def _known(self, request: ServedRequest, now_ns: int) -> Request:
        """The state of a request that is new here."""
        self._num_indices = max(self._num_indices, request.index + 1)
        check_fits(request, self.config)
        most = (request.prompt_tokens + request.output_tokens - 1) // self.config.block_size
        keys = list(request.block_keys[:most])
        keys += [private_key(request.index, position) for position in range(len(keys), most)]
        lengths = request.prompt_tokens, request.output_tokens
        state = Request(request.index, *lengths, keys, now_ns, request.cached_tokens)
        self._requests[request.index] = state
        return state

    def abort(self, index: int, now_ns: int) -> None:
        """Drop a waiting or running request and free its blocks; a finished one is left alone."""
        request = self._requests[index]
        if request in self._running:
            self._running.remove(request)
        elif request in self._waiting:
            self._waiting.remove(request)
        else:
            return
        request.aborted = True
        self._release(request, now_ns)

    def advance(self, now_ns: int, until_ns: int | None) -> tuple[int, list[Finished]]:
        """Run passes until one finishes a request or the next would start at or after ``until_ns``."""
        return stepping.advance(self, self._timing, now_ns, until_ns)

    # -- one pass ----------------------------------------------------------------------------------------------

    num_decoding = 0
    restore_ns = 0
    late_ns = 0
    holds_prefills = False

    def begin(self, now_ns: int) -> None:
        """The next pass starts at ``now_ns``."""

    def quiet_passes(self) -> int:
        """Every pass is scheduled here."""
        return 0

    def contexts(self, count: int) -> Iterable[int]:
        """See :meth:`quiet_passes`."""
        raise NotImplementedError

    def skip(self, starts: Sequence[int], durations: Sequence[int]) -> None:
        """See :meth:`quiet_passes`."""
        raise NotImplementedError

    def schedule(self, now_ns: int) -> Batch:
        """Form the batch of the next pass; :meth:`complete` has to follow."""
        self._restored_blocks = 0
        if self._host is not None:
            self._host.pass_index = len(self._passes)
        self._batch = self._schedule(now_ns)
        if self._host is not None:
            self.restore_ns = self._host.memory.restore_ns(self._restored_blocks)
        decodes = [work.computed_before for work in self._batch if work.is_decode]
        prefills = [work for work in self._batch if not work.is_decode]
        new_tokens = sum(work.tokens for work in prefills)
        read_tokens = sum(work.computed_before for work in prefills)
        return len(prefills), new_tokens, read_tokens, len(decodes), sum(decodes)

    def complete(self, now_ns: int, duration_ns: int) -> None:
        """The scheduled pass started at ``now_ns``: compute and sample."""
        self._write_pass(self._batch, now_ns, now_ns + duration_ns, len(self._preemptions) - self._preempted_before)
        self._preempted_before = len(self._preemptions)
        self._finished = self._update(self._batch, now_ns + duration_ns)

    def let_go(self, next_start_ns: int) -> list[Finished]:
        """What finished in the last pass, in running order; the next may start at ``next_start_ns``."""
        self._ready_ns = next_start_ns
        return self._finished

    def _schedule(self, now_ns: int) -> list[Work]:
        """The batch of one pass, in running order; every block it needs is allocated and registered."""
        batch: list[Work] = []
        if self.holds_prefills and not self._short and any(map(_has_sampled, self._running)):
            self._go_on(batch, self.config.max_num_batched_tokens, now_ns, _has_sampled)
            return batch
        budget, preempted = self._go_on(batch, self.config.max_num_batched_tokens, now_ns)
        if not preempted:
            self._admit_waiting(batch, budget, now_ns)
            self._short = bool(self._waiting)
        return batch

    def _go_on(
        self, batch: list[Work], budget: int, now_ns: int, takes_part: Callable[[Request], bool] = lambda _: True
    ) -> tuple[int, bool]:
        """Running requests that take part, in order; where blocks are short, the last that runs gives up its own.

        Returns what is left of the budget, and whether anybody was preempted.
        """
        position = 0
        preempted = False
        while position < len(self._running) and budget > 0:
            request = self._running[position]
            position += 1
            if request.sampled == request.output_tokens or not takes_part(request):
                continue
            tokens = self._chunk(request.known - request.computed, budget)
            drafts = self._drafts if self._decodes(request) else 0
            needed = self._blocks(request.computed + tokens + drafts) - len(request.blocks)
            while needed > self.pool.num_free:
                victim = self._running.pop()
                self._preempt(victim, now_ns)
                preempted = True
                if victim is request:
                    return budget, True
            batch.append(self._compute(request, tokens, resumed=False, drafts=drafts))
            budget -= tokens + drafts
        return budget, preempted

    def _admit_waiting(self, batch: list[Work], budget: int, now_ns: int) -> None:
        """Waiting requests, first come, first served: the head of the queue holds up the rest."""
        while self._waiting and budget > 0 and len(self._running) < self.config.max_num_seqs:
            place = self._next_place()
            request = self._waiting[place]
            hits = self._hits(request)
            restored = self._restorable(request, len(hits))
            computed = (len(hits) + restored) * self.config.block_size
            if not self._fits(request, hits, computed, budget):
                break
            if request.forced_tokens is not None and not request.admissions:
                restored = 0
                hits, computed = hits[: request.forced_tokens // self.config.block_size], request.forced_tokens
                if not self._fits(request, hits, computed, budget):
                    break
            tokens = self._chunk(request.known - computed, budget)
            del self._waiting[place]
            self._admit(request, hits, computed, now_ns, place, restored)
            batch.append(self._compute(request, tokens, resumed=request.admissions > 1))
            budget -= tokens

    def _next_place(self) -> int:
        """Place in the queue of whoever is tried next."""
        return 0

    def _decodes(self, request: Request) -> bool:
        """Whether a running request has sampled since its last admission, so that drafts follow what it sampled."""
        return _has_sampled(request)

    def _chunk(self, missing: int, budget: int) -> int:
        """How many of a request's ``missing`` tokens this pass computes."""
        threshold = self.config.long_prefill_token_threshold
        return min(missing, threshold, budget) if threshold else min(missing, budget)

    def _blocks(self, tokens: int) -> int:
        """Blocks that hold ``tokens`` tokens."""
        return -(-tokens // self.config.block_size)

    def _hits(self, request: Request) -> list[int]:
        """Blocks that hold the beginning of a request; its last known token is never among them."""
        hits: list[int] = []
        if self.config.prefix_caching:
            for key in request.keys[: (request.known - 1) // self.config.block_size]:
                block = self.pool.find(key)
                if block is None:
                    break
                hits.append(block)
        return hits

    def _restorable(self, request: Request, hits: int) -> int:
        """Blocks after the first ``hits`` that the host holds; again never the last known token."""
        if self._host is None:
            return 0
        return self._host.reach(request.keys[hits : (request.known - 1) // self.config.block_size])

    def _fits(self, request: Request, hits: list[int], computed: int, budget: int) -> bool:
        """Whether a request can be admitted with ``computed`` tokens, of which ``hits`` hold the first."""
        tokens = self._chunk(request.known - computed, budget)
        reserved = request.known if self.config.reserve_full_prompt else computed + tokens
        idle_hits = sum(self.pool.is_free(block) for block in hits)
        return self._blocks(reserved) - len(hits) + idle_hits <= self.pool.num_free

    def _admit(
        self, request: Request, hits: list[int], computed: int, now_ns: int, ahead: int = 0, restored: int = 0
    ) -> None:
        """Let a request run with ``computed`` tokens; those that are in none of its ``hits`` get fresh blocks.

        Blocks ``restored`` from the host get theirs with what the request computes first.
        """
        self.pool.reference(hits)
        request.blocks = list(hits)
        request.registered = len(hits)
        request.computed = len(hits) * self.config.block_size
        if restored and self._host is not None:
            self._host.use(request.keys[len(hits) : len(hits) + restored])
            self._restored_blocks += restored
            request.computed = computed
        else:
            self._fill(request, computed)
        self._enter(request, len(hits), request.computed, now_ns, ahead, restored)

    def _enter(
        self, request: Request, hit_blocks: int, cached_tokens: int, now_ns: int, ahead: int = 0, restored: int = 0
    ) -> None:
        """A request that has its blocks runs from this pass on."""
        request.seq = len(self._admissions)
        pass_index = len(self._passes)
        if request.admissions == 0:
            request.first_admit_ns, request.first_admit_pass = now_ns, pass_index
            request.cached_tokens = cached_tokens
        self._admissions.append(
            (
                request.index,
                request.seq,
                request.admissions,
                pass_index,
                now_ns,
                cached_tokens,
                hit_blocks,
                request.admissions > 0,
                ahead,
                *((restored,) if self.config.host else ()),
            )
        )
        request.admissions += 1
        self._running.append(request)

    def _preempt(self, request: Request, now_ns: int) -> None:
        """Take back a running request's blocks; it starts over from the front of the queue."""
        self._preemptions.append((request.index, len(self._passes), len(request.blocks)))
        request.preemptions += 1
        self._release(request, now_ns)
        request.computed = 0
        self._waiting.appendleft(request)

    def _compute(self, request: Request, tokens: int, resumed: bool, drafts: int = 0) -> Work:
        """The next ``tokens`` tokens of a request, and drafts after them, as work of this pass."""
        before, after = request.computed, request.computed + tokens
        request.recomputed_tokens += max(0, min(after, request.most_computed) - before)
        self._fill(request, after, drafts)
        return Work(request, before, tokens, resumed, drafts)

    def _fill(self, request: Request, computed: int, drafts: int = 0) -> None:
        """Allocate the blocks up to ``computed`` tokens and ``drafts``, and register those that are filled.

        Registered at once, so that whoever is admitted later in the same pass can share them; drafts are not, as they
        may be rejected.
        """
        taken, evicted = self.pool.take(max(0, self._blocks(computed + drafts) - len(request.blocks)))
        request.blocks += taken
        self._write_evictions(request, evicted)
        if self.config.prefix_caching:
            first, last = request.registered, computed // self.config.block_size
            for position in range(first, last):
                self.pool.register(request.blocks[position], request.keys[position])
            request.registered = last
            self._write_event(STORE, request, request.keys[first:last], -1)
        request.computed = computed
        request.most_computed = max(request.most_computed, computed)

    def _update(self, batch: list[Work], end_ns: int) -> list[Finished]:
        """Sample a token for each request whose known tokens are all computed; let go of those that are done."""
        pass_index = len(self._passes) - 1
        finished: list[Finished] = []
        for request, before, tokens, _resumed, drafts in batch:
            if request.computed < request.known:
                self._chunks.append((pass_index, request.index, request.seq, before, tokens))
                continue
            if request.stretch is None or request.stretch[3] != pass_index - 1:
                self._chunks.append((pass_index, request.index, request.seq, before, tokens + drafts))
                request.stretch = [request.index, request.seq, pass_index, pass_index, request.computed]
                request.bursts = []
                self._stretches.append(request.stretch)
                self._bursts.append(request.bursts)
            request.stretch[3] = pass_index
            if request.first_token_pass < 0:
                request.first_token_pass, request.first_token_ns = pass_index, end_ns
            request.last_token_pass = pass_index
            sampled = self._sampled(request, drafts)
            request.bursts.append(sampled)
            request.verified += drafts > 0
            request.sampled += sampled
            request.computed += sampled - 1
            if request.stretch[2] == pass_index:
                request.stretch[4] = request.computed
            request.most_computed = max(request.most_computed, request.computed)
            if request.sampled == request.output_tokens:
                self._depart(request, end_ns)
                finished.append(
                    Finished(request.index, pass_index, end_ns, request.first_token_ns, request.cached_tokens)
                )
        return finished

    def _sampled(self, request: Request, drafts: int) -> int:
        """Tokens that a request samples whose known ones are all computed: one, and the drafts that are accepted."""
        if not drafts or self.config.speculation is None:
            return 1
        accepted = int(self.config.speculation.lengths(request.index, request.verified, 1)[0])
        return min(accepted, request.output_tokens - request.sampled)

    def _depart(self, request: Request, end_ns: int) -> None:
        """A running request has sampled its last token: its seat is free, and its blocks."""
        self._running.remove(request)
        self._retire(request, end_ns)

    def _retire(self, request: Request, end_ns: int) -> None:
        """Let go of a request that has sampled its last token."""
        self._release(request, end_ns)

    def _release(self, request: Request, now_ns: int) -> None:
        if self._host is not None and request.blocks:
            self._host.keep(request.keys[: request.registered], request.index)
        self.pool.release(request.blocks, now_ns)
        request.blocks = []
        request.stretch = None

    def check_integrity(self) -> None:
        """Check pool, block tables and queues against each other (between two passes).

        Raises:
            AssertionError: they disagree (a defect of the program).
        """
        self.pool.check_integrity([request.blocks for request in self._holders()])
        for request in self._running:
            assert len(request.blocks) >= self._blocks(request.computed), "blocks do not hold the computed tokens"
            spare = len(request.blocks) - self._blocks(request.computed + self._drafts)
            assert spare <= 0, "blocks beyond the computed tokens and the drafts"
            assert 0 < request.computed < request.known, "a running request has nothing to compute"
        assert not any(request.blocks for request in self._waiting), "a waiting request holds blocks"
        assert len(self._running) <= self.config.max_num_seqs, "more run than may"

    def _holders(self) -> list[Request]:
        """Requests that may hold blocks."""
        return self._running

    # -- the record --------------------------------------------------------------------------------------------

    def _write_pass(self, batch: list[Work], start_ns: int, end_ns: int, num_preempted: int) -> None:
        """Write the row of a pass."""
        decodes = [work.computed_before for work in batch if work.is_decode]
        prefills = [work for work in batch if not work.is_decode]
        new_tokens = sum(work.tokens for work in prefills)
        read_tokens = sum(work.computed_before for work in prefills)
        previous, went_on = self._previous_end_ns, start_ns == self._ready_ns
        self._previous_end_ns = end_ns
        self._passes.append(
            (
                start_ns,
                end_ns,
                end_ns - previous if previous is not None and went_on else -1,
                new_tokens,
                read_tokens,
                sum(
                    self._sampled(work.request, work.drafts)
                    for work in batch
                    if work.request.computed == work.request.known
                ),
                self.pool.num_referenced,
                self.pool.num_keys,
                len(self._running),
                len(self._waiting),
                num_preempted,
                *_moments([work.request.known for work in prefills]),
                *_moments(decodes),
                *_moments([request.known for request in self._waiting if not request.admissions]),
                *_moments([request.known for request in self._waiting if request.admissions]),
            )
        )

    def _write_evictions(self, request: Request, evicted: list[Eviction]) -> None:
        for released_ns, run in groupby(evicted, key=lambda eviction: eviction.released_ns):
            self._write_event(EVICT, request, [eviction.key for eviction in run], released_ns)

    def _write_event(self, kind: int, request: Request, keys: list[int], released_ns: int) -> None:
        if not keys or not self.config.record_events:
            return
        first = len(self._event_keys)
        self._events.append((kind, len(self._passes), request.index, first, len(keys), released_ns))
        self._event_keys += keys

    def finish(self) -> ServerRecord:
        """Everything that happened, as arrays."""
        admissions = (*ADMISSION_COLUMNS, "restored_blocks") if self.config.host else ADMISSION_COLUMNS
        return ServerRecord(
            passes=pass_columns(columns(PASS_ROW, self._passes)),
            requests=columns(REQUEST_COLUMNS, self._request_rows()),
            stretches=columns(STRETCH_COLUMNS, self._stretches),
            prefill_chunks=columns(CHUNK_COLUMNS, self._chunks),
            admissions=columns(admissions, self._admissions),
            preemptions=columns(PREEMPTION_COLUMNS, self._preemptions),
            events=columns(EVENT_COLUMNS, self._events),
            event_keys=np.array(self._event_keys, dtype=np.int64),
            bursts=np.array([n for bursts in self._bursts for n in bursts] if self._drafts else [], np.int64),
            verify_width=1 + self._drafts,
            **(self._host.record() if self._host is not None else {}),
        )

    def _request_rows(self) -> Iterator[tuple[int, ...]]:
        """One row per index; one that was refused has -1 everywhere but in its counts."""
        for index in range(self._num_indices):
            r = self._requests.get(index) or Request(index, 0, 0, [], -1)
            yield (
                r.received_ns,
                r.first_admit_ns,
                r.first_admit_pass,
                r.cached_tokens,
                r.recomputed_tokens,
                r.preemptions,
                r.sampled,
                r.first_token_pass,
                r.last_token_pass,
                r.aborted,
            )


def _has_sampled(request: Request) -> bool:
    """Whether a running request has sampled since its last admission, so that it decodes."""
    return request.stretch is not None


def _moments(values: list[int]) -> tuple[int, int, int]:
    """Count, sum and sum of squares."""
    return len(values), sum(values), sum(value * value for value in values)
