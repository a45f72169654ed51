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
from heapq import heappop, heappush

from engine.errors import GapscopeError
from engine.serving.contract import Finished, ServedRequest, ServerConfig, ServerRecord
from engine.serving.plain import check_fits
from engine.serving.skipping.content import Content
from engine.serving.skipping.log import Log
from engine.serving.skipping.pool import Run, RunPool
from engine.serving.skipping.record import build_record
from engine.serving.skipping.request import ScheduledRequest
from engine.timing.contract import PassTimeSource

_NEVER = 1 << 62


class SkippingServer:
    """One replica (see :class:`engine.serving.contract.Server`) that goes from event to event."""

    @staticmethod
    def supports(config: ServerConfig) -> bool:
        """Whether this core can serve such a configuration.

        It needs each running request to be able to decode in every pass and at most one to be in the middle of its
        prefill: a budget of one token per seat, and no limit on prefill chunks below the budget.
        """
        threshold, budget = config.long_prefill_token_threshold, config.max_num_batched_tokens
        return budget >= config.max_num_seqs and (threshold == 0 or threshold >= budget)

    def __init__(self, config: ServerConfig, timing: PassTimeSource) -> None:
        """Raises GapscopeError where the configuration is not supported."""
        if not self.supports(config):
            raise GapscopeError(
                f"The skipping core cannot serve max_num_batched_tokens={config.max_num_batched_tokens} with "
                f"max_num_seqs={config.max_num_seqs} and long_prefill_token_threshold="
                f"{config.long_prefill_token_threshold}: expected a token per seat and no limit on chunks below the "
                "budget; set core to plain or auto."
            )
        self.config = config
        self.pool = RunPool(config.usable_kv_blocks, config.record_events)
        self._pass_ns = timing.pass_ns
        self._timing = timing
        self._log = Log()
        self._content = Content(self.pool, config.block_size, self._log)
        self._requests: dict[int, ScheduledRequest] = {}
        self._num_indices = 0
        self._waiting: deque[ScheduledRequest] = deque()
        self._running: dict[int, ScheduledRequest] = {}  # by seq, hence in order
        self._partial: ScheduledRequest | None = None  # in the middle of its prefill
        self._head_is_blocked = False  # no blocks for the head of the queue, and none until some are released
        self._next_pass = 0
        self._next_start_ns = -1
        # The decoding requests: count, sum and sum of squares of their computed tokens before the next pass, how
        # many open a block in the passes p with p % block_size == slot, and when they finish (pass, seq).
        self._decodes = 0
        self._context = 0
        self._context_squares = 0
        self._openings = [0] * config.block_size
        self._finishes: list[tuple[int, int]] = []

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
        if not self.has_work:
            raise ValueError("advance: nothing waits and nothing runs")
        until = _NEVER if until_ns is None else until_ns
        if now_ns != self._next_start_ns:
            self._log.restarts.append(self._next_pass)
        seats = self.config.max_num_seqs
        finishes = self._finishes
        while True:
            may_admit = self._waiting and not self._head_is_blocked and len(self._running) < seats
            if self._partial is not None or may_admit:
                now_ns = self._step(now_ns)
            else:
                now_ns = self._skip(now_ns, until)
            if finishes and finishes[0][0] < self._next_pass:
                finished = self._finish(self._log.starts[-1] + self._log.durations[-1])
                if finished:
                    self._next_start_ns = now_ns
                    return now_ns, finished
            if now_ns >= until:
                self._next_start_ns = now_ns
                return now_ns, []

    def finish(self) -> ServerRecord:
        """Everything that happened, as arrays."""
        last = self._next_pass - 1
        for request in self._running.values():
            if request.decoding:
                self._end_stretch(request, last)
        return build_record(self._log, self.pool, self.config, self._requests, self._num_indices)

    # -- passes ------------------------------------------------------------------------------------------------

    def _skip(self, now_ns: int, until_ns: int) -> int:
        """Decode until the next finish, ``until_ns`` or shortage of blocks; returns when the next pass may start."""
        first = self._next_pass
        running, finishes = self._running, self._finishes
        while finishes[0][1] not in running:
            heappop(finishes)
        count = finishes[0][0] - first + 1
        pool, decodes = self.pool, self._decodes
        room = pool.blank if self._content.contested else pool.free
        if (count // self.config.block_size + 1) * decodes > room and self._count_openings(count) > room:
            # Blocks run short; or, with contested content, it matters what is evicted in which pass.
            count = 1 if self._content.contested else self._passes_within(room)
            if count == 0 or self._count_openings(1) > pool.free:
                return self._step(now_ns)
        pass_ns, timing = self._pass_ns, self._timing
        context = self._context
        self._log_passes(pool.size - pool.free)
        starts, durations = self._log.starts, self._log.durations
        start = len(durations)
        for _ in range(count):
            duration = pass_ns(0, 0, 0, decodes, context)
            starts.append(now_ns)
            durations.append(duration)
            now_ns += duration + timing.between_ns
            context += decodes
            if now_ns >= until_ns:
                break
        done = len(durations) - start
        opened = self._count_openings(done)
        if opened:
            pool.take(opened)
        self._context_squares += done * (2 * self._context + (done * decodes))
        self._context = context
        self._next_pass = first + done
        if self._content.contested:
            self._content.settle_contested(first, first + done - 1)
        return now_ns

    def _step(self, now_ns: int) -> int:
        """One pass with prefill, admissions or preemption; returns when the next pass may start."""
        this = self._next_pass
        pool, log = self.pool, self._log
        preempted = 0
        opened = self._openings[this % self.config.block_size]
        if opened <= pool.free:
            if opened:
                pool.take(opened)
        else:
            opened, preempted = self._decode_with_preemption(now_ns)
        if self._content.contested:
            self._content.settle_contested(this, this)
        decodes, context = self._decodes, self._context
        budget = self.config.max_num_batched_tokens - decodes
        work: list[tuple[ScheduledRequest, int, int]] = []
        odd_decode = False  # a request that is resumed and lacks just one token counts as decoding

        partial = self._partial
        if partial is not None:
            before = partial.computed
            known = partial.prompt_tokens + partial.sampled
            tokens = min(known - before, budget)
            if self._blocks(before + tokens) - self._blocks(before) > pool.free:
                self._preempt(partial, now_ns)
                preempted += 1
            else:
                self._compute(partial, before, tokens)
                budget -= tokens
                work.append((partial, before, tokens))
                if tokens == 1 and before == known - 1 and partial.sampled:
                    odd_decode = True
                self._partial = None
        if self._waiting and not preempted:
            self._admit_waiting(now_ns, budget, work)

        # Price the batch and write its row.
        prefills = len(work)
        new_tokens = read_tokens = 0
        for _request, before, tokens in work:
            new_tokens += tokens
            read_tokens += before
        if odd_decode:
            before = work[0][1]
            duration = self._pass_ns(prefills - 1, new_tokens - 1, read_tokens - before, decodes + 1, context + before)
        else:
            duration = self._pass_ns(prefills, new_tokens, read_tokens, decodes, context)
        self._log_passes(pool.size - pool.free - opened)
        log.starts.append(now_ns)
        log.durations.append(duration)

        # Advance the decoding requests, then let those join whose prefill is complete.
        self._context = context + decodes
        self._context_squares += 2 * context + decodes
        self._next_pass = this + 1
        for request, before, tokens in work:
            known = request.prompt_tokens + request.sampled
            log.chunks += (this, request.index, request.seq, before, tokens, known)
            if before + tokens == known:
                if request.sampled == 0:
                    request.first_token_ns = now_ns + duration
                self._start_stretch(request, this)
            else:
                self._partial = request
        return now_ns + duration + self._timing.between_ns

    def _admit_waiting(self, now_ns: int, budget: int, work: list[tuple[ScheduledRequest, int, int]]) -> None:
        """First come, first served: the head of the queue holds up the rest."""
        config, pool, waiting, running = self.config, self.pool, self._waiting, self._running
        seats, block_size, this = config.max_num_seqs, config.block_size, self._next_pass
        log, content = self._log, self._content
        content.this = this
        while waiting and budget > 0 and len(running) < seats:
            request = waiting[0]
            known = request.prompt_tokens + request.sampled
            runs: list[Run] = []
            hits = idle = 0
            if config.prefix_caching:
                path = content.path(request)
                runs, hits, idle = pool.match(path, (known - 1) // block_size, content.settle)
            computed = hits * block_size
            tokens = known - computed
            if tokens > budget:
                tokens = budget
            reserved = known if config.reserve_full_prompt else computed + tokens
            if -(-reserved // block_size) - hits + idle > pool.free:
                # Whether blocks are missing can change only when some are released, or when a running request
                # computes what the head of the queue could share.
                self._head_is_blocked = not content.is_written(request, hits)
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
            self._compute(request, computed, tokens)
            budget -= tokens
            work.append((request, computed, tokens))

    def _compute(self, request: ScheduledRequest, before: int, tokens: int) -> None:
        """Allocate the blocks of the next ``tokens`` prompt tokens and register those that they fill."""
        block_size = self.config.block_size
        after = before + tokens
        needed = -(-after // block_size) - -(-before // block_size)
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
        this, block_size = self._next_pass, self.config.block_size
        slot = this % block_size
        opened = preempted = 0
        for request in list(self._running.values()):
            if not request.decoding or request.slot != slot:
                continue
            while self.pool.free < 1:
                victim = next(reversed(self._running.values()))
                self._preempt(victim, now_ns)
                preempted += 1
                if victim is request:
                    return opened, preempted
            self.pool.take(1)
            opened += 1
        return opened, preempted

    def _preempt(self, request: ScheduledRequest, now_ns: int) -> None:
        """Take back a running request's blocks; it starts over from the front of the queue."""
        computed = self._leave(request, now_ns)
        known = request.prompt_tokens + request.sampled
        self._log.preemptions += (request.index, self._next_pass, self._blocks(computed), known)
        request.most_computed = max(request.most_computed, computed)
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
                self._leave(request, end_ns)
                self._content.retire(request)
        return finished

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
        self._decodes += 1
        self._context += computed
        self._context_squares += computed * computed
        request.slot = slot = (this + 1 - computed) % self.config.block_size
        self._openings[slot] += 1
        heappush(self._finishes, (this + request.output_tokens - request.sampled, request.seq))

    def _end_stretch(self, request: ScheduledRequest, last: int) -> None:
        """The request decodes no more; pass ``last`` was its last."""
        more = last - request.since
        self._openings[request.slot] -= 1
        request.decoding = False
        request.computed += more
        request.sampled += more
        self._log.stretch_ends[request.row] = last
        self._decodes -= 1
        self._context -= request.computed
        self._context_squares -= request.computed * request.computed

    def _leave(self, request: ScheduledRequest, now_ns: int) -> int:
        """Take a running request out and release its blocks; returns the tokens that it had computed."""
        pool = self.pool
        if request.decoding:
            self._end_stretch(request, self._next_pass - 1)
        elif self._partial is request:
            self._partial = None
        blocks = self._blocks(request.computed)
        keyed = 0
        if request.total_blocks:
            keyed = request.computed // self.config.block_size
            if keyed > request.keyed:
                self._content.register(request, keyed, self._next_pass - 1)
            self._content.unclaim(request)
            pool.release(request.held, keyed, now_ns)
            request.held = []
        # Blocks without content go to the front of the free list.
        pool.blank += blocks - keyed
        pool.free += blocks - keyed
        del self._running[request.seq]
        self._head_is_blocked = False
        return request.computed

    def _log_passes(self, used_before: int) -> None:
        """Open a segment: the passes from the next one on, until another is opened, are alike."""
        self._log.segments += (
            self._next_pass,
            self._decodes,
            self._context,
            self._context_squares,
            used_before,
            len(self._running),
        )

    # -- blocks ------------------------------------------------------------------------------------------------

    def _blocks(self, tokens: int) -> int:
        """Blocks that hold ``tokens`` tokens."""
        return -(-tokens // self.config.block_size)

    def _count_openings(self, passes: int) -> int:
        """Blocks that the decoding requests open in the next ``passes`` passes."""
        block_size, openings = self.config.block_size, self._openings
        rounds, rest = divmod(passes, block_size)
        first = self._next_pass % block_size
        stop = first + rest
        opened = rounds * self._decodes
        if stop <= block_size:
            return opened + sum(openings[first:stop])
        return opened + sum(openings[first:]) + sum(openings[: stop - block_size])

    def _passes_within(self, blocks: int) -> int:
        """How many passes the decoding requests can go on with so many blocks."""
        rounds = blocks // self._decodes
        passes = rounds * self.config.block_size
        left = blocks - rounds * self._decodes
        while True:
            left -= self._openings[(self._next_pass + passes) % self.config.block_size]
            if left < 0:
                return passes
            passes += 1
