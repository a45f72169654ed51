"""The scheduler from event to event: the same record as :mod:`engine.serving.plain`, much sooner.

Between two events (an admission, a prefill chunk, a finish, an abort, a shortage of blocks) every running request
decodes one token a pass, so a pass changes a handful of sums: how many decode, the sum and the sum of squares of
their contexts, and how many of them open a block. Those are all the state there is; a stretch of passes costs one
call of the timing source each. What happened to whom, and when, is worked out with numpy after the run
(:mod:`engine.serving.skipping.record`).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from engine.errors import GapscopeError
from engine.serving import stepping
from engine.serving.contract import Batch, Finished, ServedRequest, ServerConfig, ServerRecord
from engine.serving.host_tier import HostTier
from engine.serving.plain import check_fits
from engine.serving.skipping.content import Content
from engine.serving.skipping.decodes import BurstDecodes, Decodes, SteadyDecodes
from engine.serving.skipping.log import Log
from engine.serving.skipping.pool import Run, RunPool
from engine.serving.skipping.record import build_record
from engine.serving.skipping.request import ScheduledRequest
from engine.timing.contract import PassTimeSource


class SkippingServer:
    """One replica (see :class:`engine.serving.contract.Server`) that goes from event to event."""

    @staticmethod
    def supports(config: ServerConfig) -> bool:
        """Whether this core can serve such a configuration.

        It needs each running request to be able to go on in every pass: a budget of what a decode computes per seat.
        With a limit on prefill chunks below the budget several are in the middle of their prefills; then none may want
        more later than it does now, as a request with drafts does.
        """
        threshold, budget = config.long_prefill_token_threshold, config.max_num_batched_tokens
        width = config.speculation.width if config.speculation else 1
        return budget >= config.max_num_seqs * width and (width == 1 or threshold == 0 or threshold >= budget)

    def __init__(self, config: ServerConfig, timing: PassTimeSource) -> None:
        """Raises GapscopeError where the configuration is not supported."""
        if not self.supports(config):
            raise GapscopeError(
                f"The skipping core cannot serve max_num_batched_tokens={config.max_num_batched_tokens} with "
                f"max_num_seqs={config.max_num_seqs} and long_prefill_token_threshold="
                f"{config.long_prefill_token_threshold}: expected a token per seat, and with drafts one more for each "
                "of them and no limit on chunks below the budget; set core to plain or auto."
            )
        self.config = config
        self.pool = RunPool(config.usable_kv_blocks, config.record_events)
        self._timing = timing
        self._log = Log()
        self._requests: dict[int, ScheduledRequest] = {}
        self._num_indices = 0
        self._waiting: deque[ScheduledRequest] = deque()
        self._running: dict[int, ScheduledRequest] = {}  # by seq, hence in order
        self._partials: dict[int, ScheduledRequest] = {}  # in the middle of their prefills, by seq, hence in order
        self._longest_chunk = config.long_prefill_token_threshold or config.max_num_batched_tokens
        self._short = False  # somebody still waited when prompts could be taken last
        self._head_is_blocked = False  # no blocks for the head of the queue, and none until some are released
        self._next_pass = 0
        self._next_start_ns = -1
        self._decodes: Decodes = (
            BurstDecodes(config.block_size, self._log.bursts, config.speculation)
            if config.speculation
            else SteadyDecodes(config.block_size)
        )
        self._content = Content(self.pool, config.block_size, self._log, self._decodes.fixed)
        self._work: list[tuple[ScheduledRequest, int, int]] = []  # prefill of the scheduled pass
        self._finishes: list[tuple[int, int]] = []  # when decoding requests finish: pass, seq
        self._host = HostTier(config.host, config.record_events) if config.host and config.prefix_caching else None
        self._restored_blocks = 0  # that the scheduled pass loads from the host first
        self.restore_ns = 0  # how long that takes
        self.late_ns = 0
        self.holds_prefills = False

    @property
    def has_work(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self._waiting or self._running)

    # -- between passes ----------------------------------------------------------------------------------------

    def receive(self, request: ServedRequest, now_ns: int) -> None:
        """Put a request at the end of the waiting queue.

        Raises:
            GapscopeError: it has no token to compute or to sample, can never fit the pool, or its reuse is forced.
        """
        if request.cached_tokens is not None:
            raise GapscopeError(
                f"Request {request.index} says how many tokens it reuses: the skipping core takes what its pool holds; "
                "set core to plain."
            )
        index = request.index
        if index >= self._num_indices:
            self._num_indices = index + 1
        check_fits(request, self.config)
        state = ScheduledRequest(request, now_ns, self._next_pass)
        if self.config.prefix_caching:
            total = (request.prompt_tokens + request.output_tokens - 1) // self.config.block_size
            keys = request.block_keys
            if len(keys) > total:
                keys = keys[:total]
            state.keys = keys if isinstance(keys, array) and keys.typecode == "q" else array("q", keys)
            state.total_blocks = total
            self._content.find_path(state)
            if state.tail is not None:
                state.tail.ends += 1
        self._requests[index] = state
        self._waiting.append(state)

    def abort(self, index: int, now_ns: int) -> None:
        """Drop a waiting or running request and free its blocks; a finished one is left alone."""
        request = self._requests[index]
        if self._running.get(request.seq) is request:
            self._leave(request, now_ns)
        elif request in self._waiting:
            self._waiting.remove(request)
            self._head_is_blocked = False
        else:
            return
        self._content.retire(request)
        request.aborted_in = self._next_pass

    def advance(self, now_ns: int, until_ns: int | None) -> tuple[int, list[Finished]]:
        """Run passes until one finishes a request or the next would start at or after ``until_ns``."""
        return stepping.advance(self, self._timing, now_ns, until_ns)

    def finish(self) -> ServerRecord:
        """Everything that happened, as arrays."""
        last = self._next_pass - 1
        for request in self._running.values():
            if request.decoding:
                self._end_stretch(request, last)
        return build_record(self._log, self.pool, self.config, self._requests, self._num_indices, self._host)

    # -- passes ------------------------------------------------------------------------------------------------

    def quiet_passes(self) -> int:
        """How many passes it can go on decoding; 0: the next one has to be scheduled."""
        if self._partials or (
            self._waiting and not self._head_is_blocked and len(self._running) < self.config.max_num_seqs
        ):
            return 0
        if self._waiting and not self._short and self.config.prefill_schedule_interval > 1:
            return 0  # what this rank does next depends on the step
        running, finishes, first = self._running, self._finishes, self._next_pass
        while finishes and finishes[0][1] not in running:
            heappop(finishes)
        if not finishes:
            return 0
        pool, decodes = self.pool, self._decodes
        count = finishes[0][0] - first + 1
        room = pool.blank if self._content.contested else pool.free
        most = ((count + 1) * decodes.width // self.config.block_size + 1) * decodes.count
        if most > room and decodes.opened(first, count) > room:
            # Blocks run short; or, with contested content, it matters what is evicted in which pass.
            count = 1 if self._content.contested else decodes.passes_within(first, room)
            if count == 0 or decodes.opened(first, 1) > pool.free:
                return 0
        return count

    @property
    def num_decoding(self) -> int:
        """Requests that decode in quiet passes."""
        return self._decodes.count

    def contexts(self, count: int) -> Iterable[int]:
        """Sum of the computed tokens of the decoding requests before each of the next passes."""
        return self._decodes.contexts(self._next_pass, count)

    def begin(self, now_ns: int) -> None:
        """The next pass starts at ``now_ns``."""
        if now_ns != self._next_start_ns:
            self._log.restarts.append(self._next_pass)

    def skip(self, starts: Sequence[int], durations: Sequence[int]) -> None:
        """The next passes, of those that are quiet, went like this."""
        first, done, decodes, pool = self._next_pass, len(starts), self._decodes, self.pool
        self._log_passes(pool.size - pool.free)
        self._log.starts += starts
        self._log.durations += durations
        opened = decodes.opened(first, done)
        if opened:
            pool.take(opened)
        decodes.advance(first, done)
        self._next_pass = first + done
        self._short = bool(self._waiting)
        if self._host is not None:
            self._host.pass_index = first + done - 1
        if self._content.contested:
            self._content.settle_contested(first, first + done - 1)

    def schedule(self, now_ns: int) -> Batch:
        """Form the batch of the next pass; :meth:`complete` has to follow."""
        this = self._next_pass
        pool, decoding, content = self.pool, self._decodes, self._content
        preempted = 0
        if self._host is not None:
            self._host.pass_index = this
            self._restored_blocks = self.restore_ns = 0
        holds = self.holds_prefills and not self._short and len(self._running) > len(self._partials)
        opened = decoding.opened(this, 1)
        work: list[tuple[ScheduledRequest, int, int]] = []
        if not holds and self._partials:
            needed, block_size = 0, self.config.block_size
            # All but the last that runs go on as far as they can: nobody was admitted behind one who could not.
            budget = self.config.max_num_batched_tokens - decoding.count * decoding.width
            for request in self._partials.values():
                before, tokens = self._chunk(request, budget)
                budget -= tokens
                needed += -(-(before + tokens) // block_size) - -(-before // block_size)
                work.append((request, before, tokens))
            if content.contested or opened + needed > pool.free:
                work.clear()
                opened, preempted = self._go_on_in_order(now_ns, work)
            else:
                if opened:
                    pool.take(opened)
                for request, before, tokens in work:
                    self._compute(request, before, tokens)
            for request, _before, _tokens in work:
                del self._partials[request.seq]
        else:
            if opened <= pool.free:
                if opened:
                    pool.take(opened)
            else:
                opened, preempted = self._decode_with_preemption(now_ns)
            if content.contested:
                content.settle_contested(this, this)
        decodes = decoding.count
        context = decoding.context_of(this)
        budget = self.config.max_num_batched_tokens - decodes * decoding.width
        odd = odd_context = 0  # requests that are resumed and lack just one token count as decoding
        for request, before, tokens in work:
            budget -= tokens
            if tokens == 1 and request.sampled and before == request.prompt_tokens + request.sampled - 1:
                odd += 1
                odd_context += before
        if not (preempted or holds):
            self._admit_waiting(now_ns, budget, work)
            self._short = bool(self._waiting)

        prefills = len(work)
        new_tokens = read_tokens = 0
        for _request, before, tokens in work:
            new_tokens += tokens
            read_tokens += before
        self._log_passes(pool.size - pool.free - opened)
        self._work = work
        return prefills - odd, new_tokens - odd, read_tokens - odd_context, decodes + odd, context + odd_context

    def _chunk(self, request: ScheduledRequest, budget: int) -> tuple[int, int]:
        """Tokens that a request in the middle of its prefill has computed, and how many come next."""
        before = request.computed
        return before, min(request.prompt_tokens + request.sampled - before, self._longest_chunk, budget)

    def complete(self, now_ns: int, duration_ns: int) -> None:
        """The scheduled pass started at ``now_ns``: decoding requests go on, and those join that are prefilled."""
        this, log = self._next_pass, self._log
        log.starts.append(now_ns)
        log.durations.append(duration_ns)
        self._decodes.advance(this, 1)
        self._next_pass = this + 1
        for request, before, tokens in self._work:
            known = request.prompt_tokens + request.sampled
            log.chunks += (this, request.index, request.seq, before, tokens, known)
            if before + tokens == known:
                if request.sampled == 0:
                    request.first_token_ns = now_ns + duration_ns
                self._start_stretch(request, this)
            else:
                self._partials[request.seq] = request

    def let_go(self, next_start_ns: int) -> list[Finished]:
        """What finished in the last pass, in running order; the next may start at ``next_start_ns``."""
        self._next_start_ns = next_start_ns
        finishes = self._finishes
        if not finishes or finishes[0][0] >= self._next_pass:
            return []
        return self._finish(self._log.starts[-1] + self._log.durations[-1])

    def _admit_waiting(self, now_ns: int, budget: int, work: list[tuple[ScheduledRequest, int, int]]) -> None:
        """First come, first served: the head of the queue holds up the rest."""
        config, pool, waiting, running = self.config, self.pool, self._waiting, self._running
        seats, block_size, this = config.max_num_seqs, config.block_size, self._next_pass
        log, content, host, longest = self._log, self._content, self._host, self._longest_chunk
        content.this = this
        while waiting and budget > 0 and len(running) < seats:
            request = waiting[0]
            known = request.prompt_tokens + request.sampled
            runs: list[Run] = []
            hits = idle = 0
            if config.prefix_caching:
                path = content.path(request)
                runs, hits, idle = pool.match(path, (known - 1) // block_size, content.settle)
            restored = 0
            if host is not None:
                restored = host.reach(request.content(hits, (known - 1) // block_size))
            computed = (hits + restored) * block_size
            tokens = known - computed
            if tokens > budget:
                tokens = budget
            if tokens > longest:
                tokens = longest
            reserved = known if config.reserve_full_prompt else computed + tokens
            if not self._reserve(request, -(-reserved // block_size), hits, idle):
                # With less to load from the host it would also have to compute, and so to reserve, less at once.
                shrinks = restored and not config.reserve_full_prompt
                self._head_is_blocked = not shrinks and self._stays_blocked(request, hits, idle)
                return
            waiting.popleft()
            pool.reference(runs)
            request.held = runs
            request.keyed = hits
            request.seq = seq = log.num_admissions
            log.num_admissions = seq + 1
            log.admissions += (request.index, request.admissions, this, hits)
            if request.admissions == 0:
                request.cached_tokens = computed
            request.admissions += 1
            running[seq] = request
            if config.prefix_caching:
                content.claim(request)
            if restored:
                self._restore(request, hits, restored)
            self._compute(request, computed, tokens, restored)
            budget -= tokens
            work.append((request, computed, tokens))

    def _reserve(self, request: ScheduledRequest, reserved: int, hits: int, idle: int) -> bool:
        """Whether a request that is to hold ``reserved`` blocks can be admitted; ``idle`` of its hits nobody holds."""
        return reserved - hits + idle <= self.pool.free

    def _stays_blocked(self, request: ScheduledRequest, hits: int, idle: int) -> bool:
        """Whether blocks for the head of the queue are missing until some are released.

        That can change before only when a running request computes what the head could share.
        """
        return not self._content.is_written(request, hits)

    def _restore(self, request: ScheduledRequest, hits: int, restored: int) -> None:
        """Load blocks that follow a request's hits; they get room with what it computes in this pass."""
        assert self._host is not None
        self._host.use(request.content(hits, hits + restored))
        self._log.restores += (request.seq, restored)
        self._restored_blocks += restored
        self.restore_ns = self._host.memory.restore_ns(self._restored_blocks)

    def _compute(self, request: ScheduledRequest, before: int, tokens: int, restored: int = 0) -> None:
        """Allocate the blocks of the next ``tokens`` prompt tokens and register those that they fill.

        So are those before them that were ``restored`` for them.
        """
        block_size = self.config.block_size
        after = before + tokens
        needed = -(-after // block_size) - -(-before // block_size) + restored
        if needed:
            self.pool.take(needed)
        request.computed = after
        if before < request.most_computed:
            request.recomputed_tokens += min(after, request.most_computed) - before
        if request.total_blocks and after // block_size > request.keyed:
            self._content.register(request, after // block_size, self._next_pass)

    def _decode_with_preemption(self, now_ns: int) -> tuple[int, int]:
        """Open the decoding requests' blocks in running order; where blocks are short, the last give up theirs.

        Returns how many blocks were opened and how many requests were preempted.
        """
        this = self._next_pass
        opened = preempted = 0
        for request in list(self._running.values()):
            needed = self._decodes.opened_by(request, this) if request.decoding else 0
            if not needed:
                continue
            while self.pool.free < needed:
                victim = next(reversed(self._running.values()))
                self._preempt(victim, now_ns)
                preempted += 1
                if victim is request:
                    return opened, preempted
            self.pool.take(needed)
            opened += needed
        return opened, preempted

    def _go_on_in_order(self, now_ns: int, work: list[tuple[ScheduledRequest, int, int]]) -> tuple[int, int]:
        """The same with prompts that go on among them, in running order, whose chunks become ``work``.

        Also for contested content: what one fills may be what another would evict, so that the order matters.
        """
        this, pool, decodes = self._next_pass, self.pool, self._decodes
        budget = self.config.max_num_batched_tokens
        opened = preempted = 0
        for request in list(self._running.values()):
            before = tokens = 0
            if request.decoding:
                needed = decodes.opened_by(request, this)
            elif request.seq in self._partials:
                before, tokens = self._chunk(request, budget)
                needed = self._blocks(before + tokens) - self._blocks(before)
            else:
                continue
            while pool.free < needed:
                victim = next(reversed(self._running.values()))
                self._preempt(victim, now_ns)
                preempted += 1
                if victim is request:
                    return opened, preempted
            if tokens:
                self._compute(request, before, tokens)
                work.append((request, before, tokens))
                budget -= tokens
                continue
            budget -= decodes.width
            if needed:
                pool.take(needed)
                opened += needed
            if request.contested:
                self._content.settle_decoded(request, this)
        return opened, preempted

    def _preempt(self, request: ScheduledRequest, now_ns: int) -> None:
        """Take back a running request's blocks; it starts over from the front of the queue."""
        blocks = self._leave(request, now_ns)
        known = request.prompt_tokens + request.sampled
        self._log.preemptions += (request.index, self._next_pass, blocks, known)
        request.most_computed = max(request.most_computed, request.computed)
        request.computed = 0
        self._waiting.appendleft(request)

    def _finish(self, end_ns: int) -> list[Finished]:
        """Let go of the requests that sampled their last token in the pass before the next."""
        last = self._next_pass - 1
        finishes = self._finishes
        finished: list[Finished] = []
        while finishes and finishes[0][0] <= last:
            pass_index, seq = heappop(finishes)
            request = self._running.get(seq)
            if request is not None and pass_index == last:
                finished.append(Finished(request.index, last, end_ns, request.first_token_ns, request.cached_tokens))
                self._depart(request, end_ns)
        return finished

    def _depart(self, request: ScheduledRequest, end_ns: int) -> None:
        """A running request has sampled its last token: its seat is free, and its blocks."""
        self._leave(request, end_ns)
        self._content.retire(request)

    # -- requests come and go ----------------------------------------------------------------------------------

    def _start_stretch(self, request: ScheduledRequest, this: int) -> None:
        """The request samples a token in this pass and in those that follow."""
        log, computed = self._log, request.computed
        request.row = len(log.stretch_ends)
        log.stretches += (request.index, request.seq, this, computed)
        log.stretch_ends.append(this)
        request.sampled += 1
        request.since = this
        request.decoding = True
        heappush(self._finishes, (self._decodes.start(request, this), request.seq))

    def _end_stretch(self, request: ScheduledRequest, last: int) -> tuple[int, int]:
        """The request decodes no more; see :meth:`Decodes.end`."""
        request.decoding = False
        self._log.stretch_ends[request.row] = last
        return self._decodes.end(request, last)

    def _leave(self, request: ScheduledRequest, now_ns: int) -> int:
        """Take a running request out and :meth:`_give_back` its blocks; returns how many these were."""
        if request.decoding:
            blocks, fixed = self._end_stretch(request, self._next_pass - 1)
        else:
            blocks, fixed = self._blocks(request.computed), request.computed
            self._partials.pop(request.seq, None)
        keyed = 0
        if request.total_blocks:
            keyed = fixed // self.config.block_size
            if keyed > request.keyed:
                self._content.register(request, keyed, self._next_pass - 1)
            self._content.unclaim(request)
        del self._running[request.seq]
        self._give_back(request, blocks, keyed, now_ns)
        return blocks

    def _give_back(self, request: ScheduledRequest, blocks: int, keyed: int, now_ns: int) -> None:
        """Release the blocks of a request, of which the first ``keyed`` have content."""
        pool = self.pool
        if request.total_blocks:
            pool.release(request.held, keyed, now_ns)
            if self._host is not None:
                self._host.keep(request.content(0, keyed), request.index)
        # Blocks without content go to the front of the free list.
        pool.blank += blocks - keyed
        pool.free += blocks - keyed
        self._head_is_blocked = False

    def _log_passes(self, used_before: int) -> None:
        """Open a segment: the passes from the next one on, until another is opened, are alike."""
        decodes = self._decodes
        self._log.segments += (
            self._next_pass,
            decodes.count,
            decodes.context,
            decodes.squares,
            used_before,
            len(self._running),
        )

    # -- blocks ------------------------------------------------------------------------------------------------

    def _blocks(self, tokens: int) -> int:
        """Blocks that hold ``tokens`` tokens."""
        return -(-tokens // self.config.block_size)
