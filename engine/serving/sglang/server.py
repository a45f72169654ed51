"""SGLang's scheduler, from event to event.

A pass with prefill work holds no decodes, which sit it out (unless ``mixed_chunk``); its requests sample their first
token at its end and decode from then on. Between two events every decoding request samples one token per *decode step*,
so a stretch of decode passes costs one call of the timing source each; what happened to whom is worked out after the
run (:mod:`engine.serving.sglang.record`). docs/serving.md has the rules in words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from engine.errors import GapscopeError
from engine.serving.contract import Batch, Finished, ServedRequest, ServerConfig, ServerRecord
from engine.serving.record import check_fits
from engine.serving.sglang.log import Log
from engine.serving.sglang.queue import WaitingQueue
from engine.serving.sglang.radix import RadixTree
from engine.serving.sglang.record import build_record
from engine.serving.sglang.request import Request, Work
from engine.serving.stepping import advance
from engine.timing.contract import PassTimeSource

FIRST_RATIO = 0.7
"""Share of the outputs still to come that admission holds room for, times ``schedule_conservativeness``."""
LEAST_RATIO = 0.14
"""What that share falls to, as a part of the first one."""
STEPS_TO_LEAST_RATIO = 600
STEPS_AFTER_RETRACTION = 20
"""After a retraction the share is what was sampled by now and in so many steps, of all that was asked for."""

_UNLIMITED = 1 << 62


class SglangServer:
    """One replica (see :class:`engine.serving.contract.Server`) under SGLang's rules."""

    def __init__(self, config: ServerConfig, timing: PassTimeSource) -> None:
        rules = config.sglang
        self.config = config
        self.tree = RadixTree()
        self.free = config.usable_kv_blocks  # pages that hold nothing
        self._timing = timing
        self._page = config.block_size
        self._log = Log(config.record_events)
        self._requests: dict[int, Request] = {}
        self._num_indices = 0
        self._waiting = WaitingQueue(config.policy == "lpm" and config.prefix_caching, config.block_size)
        self._chunked: Request | None = None  # in the middle of its prefill
        self._is_full = False  # nobody can be admitted until somebody leaves
        self._ready_ns: int | None = None
        self._batch: list[Work] = []  # of the pass that is scheduled
        self._steps = False  # whether decoding requests are in it
        # The decoding requests: the step that comes next, count, sum and sum of squares of their computed tokens
        # before it, the tokens that they still are to sample, who opens a page in the steps s with s % page == slot,
        # and when they finish (step, seq).
        self._step = 0
        self._decoding: dict[int, Request] = {}
        self._context = 0
        self._context_squares = 0
        self._to_sample = 0
        self._longer_than_clip = 0  # how many of them were to sample more than ``clip_max_new_tokens``
        self._slots: list[dict[int, Request]] = [{} for _ in range(config.block_size)]
        self._finishes: list[tuple[int, int]] = []
        # The share of outputs to come that is held room for falls by the step from where it was set last.
        self._first_ratio = min(FIRST_RATIO * rules.schedule_conservativeness, 1.0)
        self._least_ratio = self._first_ratio * LEAST_RATIO
        self._ratio_step = (self._first_ratio - self._least_ratio) / STEPS_TO_LEAST_RATIO
        self._ratio_set = self._first_ratio
        self._ratio_steps = 0

    @property
    def has_work(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self._waiting or self._decoding) or self._chunked is not None

    # -- between passes ----------------------------------------------------------------------------------------

    def receive(self, request: ServedRequest, now_ns: int) -> None:
        """Put a request at the end of the waiting queue.

        Raises:
            GapscopeError: it has no token to compute or to sample, can never fit the pool, or its reuse is forced.
        """
        self._num_indices = max(self._num_indices, request.index + 1)
        check_fits(request, self.config)
        if request.cached_tokens is not None:
            raise GapscopeError(
                f"Request {request.index} says how many tokens it reuses: the SGLang core takes what its tree holds; "
                "set engine to vllm and core to plain."
            )
        most = self.config.usable_kv_blocks * self._page
        if request.prompt_tokens + request.output_tokens >= most:
            raise GapscopeError(
                f"Request {request.index} can never be admitted: SGLang asks for fewer prompt and output tokens than "
                f"the pool holds, and {request.prompt_tokens} + {request.output_tokens} are not below {most}; raise "
                "kv_blocks."
            )
        if not self.has_work:  # the engine was idle, and sets its estimate back
            self._set_ratio(self._first_ratio)
        state = Request(request, now_ns, self.tree.root)
        self._requests[request.index] = state
        self._waiting.join(state)

    def abort(self, index: int, now_ns: int) -> None:
        """Drop a waiting or running request; what it has computed is cached. A finished one is left alone."""
        request = self._requests[index]
        if request is self._chunked:
            self._chunked = None
        elif request.decoding:
            self._end_decoding(request)
        elif self._waiting.leave(request):
            request.aborted = True
            return
        else:
            return
        request.aborted = True
        self._is_full = False
        self._release(request, now_ns, keep=True)

    def advance(self, now_ns: int, until_ns: int | None) -> tuple[int, list[Finished]]:
        """Run passes until one finishes a request or the next would start at or after ``until_ns``."""
        return advance(self, self._timing, now_ns, until_ns)

    def finish(self) -> ServerRecord:
        """Everything that happened, as arrays."""
        for request in self._decoding.values():
            self._log.decoding_ends[request.row] = self._step
        return build_record(self._log, self.config, self._requests, self._num_indices)

    # -- passes ------------------------------------------------------------------------------------------------

    def begin(self, now_ns: int) -> None:
        """The next pass starts at ``now_ns``."""
        if now_ns != self._ready_ns:
            self._log.restarts.append(len(self._log.starts))

    def quiet_passes(self) -> int:
        """Decode passes to the next finish, as far as free pages go without an eviction; 0: something else comes."""
        decodes, free, finishes = len(self._decoding), self.free, self._finishes
        if not decodes or self._may_prefill:
            return 0
        while finishes[0][1] not in self._decoding:
            heappop(finishes)
        count = finishes[0][0] - self._step + 1
        if (count // self._page + 1) * decodes > free and self._count_openings(count) > free:
            return self._steps_within(free)
        return count

    @property
    def num_decoding(self) -> int:
        """Requests that decode."""
        return len(self._decoding)

    def contexts(self, count: int) -> Iterable[int]:
        """Sum of the computed tokens of the decoding requests before each of the next decode steps."""
        decodes, context = len(self._decoding), self._context
        return range(context, context + count * decodes, decodes)

    def skip(self, starts: Sequence[int], durations: Sequence[int]) -> None:
        """The next passes, of those that are quiet, went like this."""
        self._write_segment(len(self._decoding), 0, 0, 0)
        self._log.starts += starts
        self._log.durations += durations
        self.free -= self._count_openings(len(starts))
        self._ratio_steps += len(starts)
        self._pass_steps(len(starts))

    restore_ns = 0
    late_ns = 0
    holds_prefills = False

    def schedule(self, now_ns: int) -> Batch:
        """Form the batch of the next pass: prefill work if there is any, decodes otherwise."""
        mixes = self.config.sglang.mixed_chunk and len(self._decoding) > 0
        prefills = self._may_prefill
        opened = retracted = 0
        batch: list[Work] = []
        if mixes or not prefills:
            opened, retracted = self._open_pages(now_ns)
        if prefills and not retracted:
            batch = self._form_prefill(now_ns)
            if not (batch or mixes):
                opened, retracted = self._open_pages(now_ns)
        if not (batch or retracted):
            self._ratio_steps += 1
        self._batch = batch
        self._steps = not batch or mixes
        decodes = len(self._decoding) if self._steps else 0
        self._write_segment(decodes, opened, retracted, len(batch))
        new_tokens = sum(work.tokens for work in batch)
        read_tokens = sum(work.computed_before for work in batch)
        return len(batch), new_tokens, read_tokens, decodes, self._context if decodes else 0

    def complete(self, now_ns: int, duration_ns: int) -> None:
        """The scheduled pass started at ``now_ns``: decoding requests go on, and those join that are prefilled."""
        log, this = self._log, len(self._log.starts)
        log.starts.append(now_ns)
        log.durations.append(duration_ns)
        if self._steps:
            self._pass_steps(1)
        for request, before, tokens in self._batch:
            known = request.known
            log.chunks += (this, request.index, request.seq, before, tokens, known)
            request.computed = after = before + tokens
            if before < request.most_computed:
                request.recomputed_tokens += min(after, request.most_computed) - before
            self._cache(request)
            if after == known:
                if not request.sampled:
                    request.first_token_ns = now_ns + duration_ns
                self._start_decoding(request, this)

    def let_go(self, next_start_ns: int) -> list[Finished]:
        """What finished in the last pass, in running order; the next may start at ``next_start_ns``."""
        self._ready_ns = next_start_ns
        log, last, finishes = self._log, self._step - 1, self._finishes
        finished: list[Finished] = []
        while finishes and finishes[0][0] <= last:
            step, seq = heappop(finishes)
            request = self._decoding.get(seq)
            if request is None or step < last:
                continue
            end_ns = log.starts[-1] + log.durations[-1]
            self._end_decoding(request)
            self._release(request, end_ns, keep=True)
            self._is_full = False
            times = end_ns, request.first_token_ns
            finished.append(Finished(request.index, len(log.starts) - 1, *times, request.cached_tokens))
        return finished

    @property
    def _may_prefill(self) -> bool:
        return self._chunked is not None or (len(self._waiting) > 0 and not self._is_full)

    # -- who is computed ---------------------------------------------------------------------------------------

    def _form_prefill(self, now_ns: int) -> list[Work]:
        """The prefill work of a pass; its pages are taken. Who cannot be admitted holds up the rest of the queue."""
        config, rules, page = self.config, self.config.sglang, self._page
        seats = config.max_num_seqs - len(self._decoding)
        if seats <= 0 and self._chunked is None:
            self._is_full = True
            return []
        self._waiting.sort(self.tree)
        mixed = len(self._decoding) if rules.mixed_chunk else 0
        held = self._ratio * self._clipped_to_sample() + mixed  # tokens that are spoken for
        input_left = rules.max_prefill_tokens - mixed
        chunk_left = rules.chunked_prefill_size - mixed if rules.chunked_prefill_size else _UNLIMITED
        batch: list[Work] = []

        ongoing = self._chunked
        if ongoing is not None:
            missing = ongoing.known - ongoing.computed
            tokens = min(missing, max(chunk_left, page), (self.free + self.tree.evictable) * page)
            if tokens < missing:
                tokens = tokens // page * page
            if not tokens:
                return []  # it waits for pages, and so does the queue
            batch.append(Work(ongoing, ongoing.computed, tokens))
            if tokens == missing:
                self._chunked = None
                held += min(ongoing.output_tokens - ongoing.sampled, rules.clip_max_new_tokens)
            paged = -(-tokens // page) * page
            held += paged
            input_left -= paged
            chunk_left -= paged

        admitted: list[Work] = []
        for request in self._waiting:
            if len(batch) >= seats:
                self._is_full = True
                break
            node, hits = self.tree.root, 0
            if config.prefix_caching:
                node, hits = self.tree.match(request.chain, (request.known - 1) // page)
            missing = request.known - hits * page
            to_sample = min(request.output_tokens - request.sampled, rules.clip_max_new_tokens)
            paged = -(-missing // page) * page
            if missing + to_sample >= self._room(held):
                self._is_full = True
                break
            if paged >= input_left and batch:
                break
            self.tree.lock(node, self.tree.root)
            if missing + to_sample >= self._room(held):
                self.tree.unlock(node, now_ns)
                self._is_full = True
                break
            tokens = missing
            if paged > chunk_left:
                tokens = paged = chunk_left // page * page
                if tokens <= 0:
                    self.tree.unlock(node, now_ns)
                    break
                self._chunked = request
                to_sample = 0
            request.node, request.shared = node, hits
            work = Work(request, hits * page, tokens)
            batch.append(work)
            admitted.append(work)
            held += paged + to_sample
            input_left -= paged
            chunk_left -= paged
            if self._room(held) <= 0:
                self._is_full = True
                break
            if input_left <= 0 or chunk_left <= 0:
                break

        self._admit(admitted, now_ns)
        for request, before, tokens in batch:
            self._take(-(-(before + tokens) // page) - before // page, request)
        return batch

    def _room(self, held: float) -> float:
        """Tokens that the pool could give, less those that are spoken for."""
        return (self.free + self.tree.evictable) * self._page - held

    def _admit(self, admitted: list[Work], now_ns: int) -> None:
        """Write down who left the queue."""
        if not admitted:
            return
        log, this = self._log, len(self._log.starts)
        ahead = self._waiting.admit_first(len(admitted))
        for (request, cached, _tokens), waiting_ahead in zip(admitted, ahead, strict=True):
            request.seq = len(log.admissions)
            again = request.admissions > 0
            hits = request.shared
            log.admissions.append(
                (request.index, request.seq, request.admissions, this, now_ns, cached, hits, again, waiting_ahead)
            )
            if not again:
                request.first_admit_ns, request.first_admit_pass = now_ns, this
                request.cached_tokens = cached
            request.admissions += 1

    # -- decoding requests -------------------------------------------------------------------------------------

    def _start_decoding(self, request: Request, this: int) -> None:
        """The request samples a token in this pass and in each decode step from the next on."""
        log, computed, rules = self._log, request.computed, self.config.sglang
        request.row = len(log.decoding_ends)
        log.decoding += (request.index, request.seq, this, computed, self._step)
        log.decoding_ends.append(self._step)
        request.sampled += 1
        request.since = self._step
        request.decoding = True
        self._decoding[request.seq] = request
        self._context += computed
        self._context_squares += computed * computed
        left = request.output_tokens - request.sampled
        self._to_sample += left
        self._longer_than_clip += left > rules.clip_max_new_tokens
        request.slot = (self._step - computed) % self._page
        self._slots[request.slot][request.seq] = request
        heappush(self._finishes, (self._step + left - 1, request.seq))

    def _end_decoding(self, request: Request) -> None:
        """The request decodes no more."""
        steps = self._step - request.since
        self._longer_than_clip -= request.output_tokens - request.sampled > self.config.sglang.clip_max_new_tokens
        request.decoding = False
        request.computed += steps
        request.sampled += steps
        self._log.decoding_ends[request.row] = self._step
        del self._decoding[request.seq]
        del self._slots[request.slot][request.seq]
        self._context -= request.computed
        self._context_squares -= request.computed * request.computed
        self._to_sample -= request.output_tokens - request.sampled

    def _pass_steps(self, count: int) -> None:
        """Every decoding request samples ``count`` tokens."""
        decodes = len(self._decoding)
        self._step += count
        self._context_squares += count * (2 * self._context + count * decodes)
        self._context += count * decodes
        self._to_sample -= count * decodes

    def _open_pages(self, now_ns: int) -> tuple[int, int]:
        """Take the pages that the next decode step opens; where there are too few, requests are retracted.

        Returns how many were opened and how many requests retracted.
        """
        openers = self._slots[self._step % self._page]
        retracted = 0
        while len(openers) > self.free + self.tree.evictable:
            self._retract(now_ns)
            retracted += 1
        if retracted:
            sampled = sum(request.sampled_at(self._step) for request in self._decoding.values())
            asked = sum(request.output_tokens for request in self._decoding.values())
            expected = sampled + STEPS_AFTER_RETRACTION * len(self._decoding)
            self._set_ratio(min(1.0, expected / (asked + 1)))
        opened = len(openers)
        if opened <= self.free:
            self.free -= opened
        else:
            for _seq, request in sorted(openers.items()):
                self._take(1, request)
        return opened, retracted

    def _retract(self, now_ns: int) -> None:
        """Send the decoding request with the fewest outputs to the back of the queue; of these the longest prompt's.

        One is always left to decode: rather than it, the request in the middle of its prefill gives way.
        """
        request = self._chunked
        if len(self._decoding) > 1:
            step = self._step
            request = min(reversed(self._decoding.values()), key=lambda one: (one.sampled_at(step), -one.prompt_tokens))
            self._end_decoding(request)
        else:
            self._chunked = None
        assert request is not None
        pages = -(-request.computed // self._page)
        self._log.preemptions.append((request.index, len(self._log.starts), pages))
        request.preemptions += 1
        request.most_computed = max(request.most_computed, request.computed)
        self._release(request, now_ns, keep=False)
        request.computed = 0
        self._waiting.join(request)
        self._is_full = False

    def _clipped_to_sample(self) -> int:
        """Tokens that the decoding requests are still to sample, each clipped."""
        if not self._longer_than_clip:
            return self._to_sample
        clip, step = self.config.sglang.clip_max_new_tokens, self._step
        return sum(min(one.output_tokens - one.sampled_at(step), clip) for one in self._decoding.values())

    @property
    def _ratio(self) -> float:
        """Share of what is still to be sampled that admission holds room for."""
        return max(self._ratio_set - self._ratio_steps * self._ratio_step, self._least_ratio)

    def _set_ratio(self, ratio: float) -> None:
        self._ratio_set, self._ratio_steps = ratio, 0

    # -- pages -------------------------------------------------------------------------------------------------

    def _take(self, pages: int, request: Request) -> None:
        """Take pages for a request; where too few hold nothing, leaves of the tree are evicted."""
        if pages > self.free:
            for leaf in self.tree.evict(pages - self.free):
                self.free += len(leaf.keys)
                self._log.evicted(leaf, len(self._log.starts), request.index)
        self.free -= pages

    def _cache(self, request: Request) -> None:
        """Put what a request has computed of its prompt into the tree; it goes on holding it."""
        full = request.computed // self._page
        if not self.config.prefix_caching or full == request.shared:
            return
        node, there = self.tree.insert(request.chain, full, request.node, request.shared)
        request.used = self.tree.clock
        self._log.stored(request, there, full, len(self._log.starts) - 1)
        self.free += there - request.shared  # what others cached meanwhile is shared, and its own copy given back
        self.tree.lock(node, request.node)
        request.node, request.shared = node, full

    def _release(self, request: Request, now_ns: int, keep: bool) -> None:
        """Let go of a request's pages; with ``keep``, whole ones are cached, outputs included."""
        pages = -(-request.computed // self._page)
        if keep:
            self._cache(request)
        self.free += pages - request.shared
        self.tree.unlock(request.node, now_ns, request.used)
        request.node, request.shared = self.tree.root, 0

    def _count_openings(self, steps: int) -> int:
        """Pages that the decoding requests open in the next ``steps`` steps."""
        page, slots = self._page, self._slots
        rounds, rest = divmod(steps, page)
        opened = rounds * len(self._decoding)
        first = self._step % page
        for slot in range(first, first + rest):
            opened += len(slots[slot % page])
        return opened

    def _steps_within(self, pages: int) -> int:
        """How many steps the decoding requests can go on with so many pages."""
        rounds, left = divmod(pages, len(self._decoding))
        steps = rounds * self._page
        while True:
            left -= len(self._slots[(self._step + steps) % self._page])
            if left < 0:
                return steps
            steps += 1

    # -- the record --------------------------------------------------------------------------------------------

    def _write_segment(self, decodes: int, opened: int, retracted: int, prefills: int) -> None:
        """Open a segment: the passes from the next one on, until another is opened, are alike."""
        waits = self._chunked is not None and not prefills
        self._log.segments += (
            len(self._log.starts),
            *((decodes, self._context, self._context_squares) if decodes else (0, 0, 0)),
            self.config.usable_kv_blocks - self.free - self.tree.evictable - opened,
            self.tree.size,
            len(self._decoding) + prefills + waits,
            *self._waiting.fresh,
            *self._waiting.again,
            retracted,
        )

    def check_integrity(self) -> None:
        """Check pool, tree and queues against each other (between two passes).

        Raises:
            AssertionError: they disagree (a defect of the program).
        """
        running = [*self._decoding.values(), *([self._chunked] if self._chunked else [])]
        self.tree.check_integrity([request.node for request in running])
        own = 0
        for request in running:
            computed = request.computed + (self._step - request.since if request.decoding else 0)
            own += -(-computed // self._page) - request.shared
        assert self.free >= 0, "more pages are taken than there are"
        assert self.free + own + self.tree.size == self.config.usable_kv_blocks, "pages are lost"
        assert all(not request.shared for request in self._waiting), "a waiting request holds pages"
        assert len(running) <= self.config.max_num_seqs, "more run than may"
