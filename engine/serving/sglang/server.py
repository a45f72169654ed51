"""SGLang's scheduler, from event to event.

A pass with prefill work holds no decodes, which sit it out (unless ``mixed_chunk``); its requests sample their first
token at its end and decode from then on. Between two events every decoding request takes part in each *decode step*, so
a stretch of decode passes costs one call of the timing source each; what happened to whom is worked out after the run
(:mod:`engine.serving.sglang.record`). docs/serving.md has the rules in words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.errors import GapscopeError
from engine.serving.contract import Batch, Finished, ServedRequest, ServerConfig, ServerRecord
from engine.serving.record import check_fits
from engine.serving.sglang.admission import Admission
from engine.serving.sglang.decoding import DecodeBatch
from engine.serving.sglang.log import Log
from engine.serving.sglang.pages import Pages
from engine.serving.sglang.record import build_record
from engine.serving.sglang.request import Request, Work
from engine.serving.sglang.share import HeldShare
from engine.serving.stepping import advance
from engine.timing.contract import PassTimeSource


class SglangServer:
    """One replica (see :class:`engine.serving.contract.Server`) under SGLang's rules."""

    def __init__(self, config: ServerConfig, timing: PassTimeSource) -> None:
        self.config = config
        self._timing = timing
        self._page = config.block_size
        self._log = log = Log(config.record_events)
        self._pages = Pages(config, log)
        self._admission = Admission(config, self._pages, log)
        self._decoding = DecodeBatch(config, log)
        self._share = HeldShare(config.sglang.schedule_conservativeness)
        self._requests: dict[int, Request] = {}
        self._num_indices = 0
        self._ready_ns: int | None = None
        self._batch: list[Work] = []  # of the pass that is scheduled
        self._steps = False  # whether decoding requests are in it

    @property
    def has_work(self) -> bool:
        """Whether anything waits or runs."""
        admission = self._admission
        return bool(self._decoding.requests or admission.waiting.requests) or admission.chunked is not None

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
            self._share.set_back()
        state = Request(request, now_ns, self._pages.tree.root)
        self._requests[request.index] = state
        self._admission.waiting.join(state)

    def abort(self, index: int, now_ns: int) -> None:
        """Drop a waiting or running request; what it has computed is cached. A finished one is left alone."""
        request, admission = self._requests[index], self._admission
        if request is admission.chunked:
            admission.chunked = None
            pages = self._pages_of(request.computed)
        elif request.decoding:
            pages = self._decoding.end(request)
        elif admission.waiting.leave(request):
            request.aborted = True
            return
        else:
            return
        request.aborted = True
        admission.is_full = False
        self._pages.release(request, pages, now_ns, keep=True)

    def advance(self, now_ns: int, until_ns: int | None) -> tuple[int, list[Finished]]:
        """Run passes until one finishes a request or the next would start at or after ``until_ns``."""
        return advance(self, self._timing, now_ns, until_ns)

    def finish(self) -> ServerRecord:
        """Everything that happened, as arrays."""
        for request in list(self._decoding.requests.values()):
            self._decoding.end(request)
        return build_record(self._log, self.config, self._requests, self._num_indices)

    # -- passes ------------------------------------------------------------------------------------------------

    def begin(self, now_ns: int) -> None:
        """The next pass starts at ``now_ns``."""
        if now_ns != self._ready_ns:
            self._log.restarts.append(len(self._log.starts))

    def quiet_passes(self) -> int:
        """Decode passes to the next finish, as far as free pages go without an eviction; 0: something else comes."""
        if not self._decoding.requests or self._admission.may_prefill:
            return 0
        return self._decoding.steps_to_finish(self._pages.free)

    @property
    def num_decoding(self) -> int:
        """Requests that decode."""
        return len(self._decoding)

    def contexts(self, count: int) -> Iterable[int]:
        """Sum of the computed tokens of the decoding requests before each of the next decode steps."""
        return self._decoding.sums.contexts(self._decoding.step, count)

    def skip(self, starts: Sequence[int], durations: Sequence[int]) -> None:
        """The next passes, of those that are quiet, went like this."""
        decoding, steps = self._decoding, len(starts)
        self._write_segment(len(decoding.requests), 0, 0, 0)
        self._log.starts += starts
        self._log.durations += durations
        self._pages.free -= decoding.sums.opened(decoding.step, steps)
        self._share.steps += steps
        decoding.go_on(steps)

    restore_ns = 0
    late_ns = 0
    holds_prefills = False

    def schedule(self, now_ns: int) -> Batch:
        """Form the batch of the next pass: prefill work if there is any, decodes otherwise."""
        decoding, admission = self._decoding, self._admission
        mixes = self.config.sglang.mixed_chunk and len(decoding.requests) > 0
        prefills = admission.may_prefill
        opened = retracted = 0
        batch: list[Work] = []
        if mixes or not prefills:
            opened, retracted = self._open_pages(now_ns)
        if prefills and not retracted:
            held = self._share.value * decoding.clipped_to_sample()
            batch = admission.form(now_ns, len(decoding.requests), held)
            if not (batch or mixes):
                opened, retracted = self._open_pages(now_ns)
        if not (batch or retracted):
            self._share.steps += 1
        self._batch = batch
        self._steps = not batch or mixes
        decodes = len(decoding.requests) if self._steps else 0
        self._write_segment(decodes, opened, retracted, len(batch))
        new_tokens = read_tokens = 0
        for _request, before, tokens in batch:
            new_tokens += tokens
            read_tokens += before
        context = decoding.sums.context_of(decoding.step) if decodes else 0
        return len(batch), new_tokens, read_tokens, decodes, context

    def complete(self, now_ns: int, duration_ns: int) -> None:
        """The scheduled pass started at ``now_ns``: decoding requests go on, and those join that are prefilled."""
        log, this = self._log, len(self._log.starts)
        log.starts.append(now_ns)
        log.durations.append(duration_ns)
        if self._steps:
            self._decoding.go_on(1)
        for request, before, tokens in self._batch:
            known = request.known
            log.chunks += (this, request.index, request.seq, before, tokens, known)
            request.computed = after = before + tokens
            if before < request.most_computed:
                request.recomputed_tokens += min(after, request.most_computed) - before
            self._pages.cache(request)
            if after == known:
                if not request.sampled:
                    request.first_token_ns = now_ns + duration_ns
                self._decoding.start(request, this)

    def let_go(self, next_start_ns: int) -> list[Finished]:
        """What finished in the last pass, in running order; the next may start at ``next_start_ns``."""
        self._ready_ns = next_start_ns
        log = self._log
        finished: list[Finished] = []
        for request in self._decoding.finished():
            end_ns = log.starts[-1] + log.durations[-1]
            self._pages.release(request, self._decoding.end(request), end_ns, keep=True)
            self._admission.is_full = False
            times = end_ns, request.first_token_ns
            finished.append(Finished(request.index, len(log.starts) - 1, *times, request.cached_tokens))
        return finished

    # -- pages of decodes --------------------------------------------------------------------------------------

    def _open_pages(self, now_ns: int) -> tuple[int, int]:
        """Take the pages that the next decode step opens; where there are too few, requests are retracted.

        Returns how many were opened and how many requests retracted.
        """
        pages, decoding = self._pages, self._decoding
        retracted = 0
        opened = decoding.sums.opened(decoding.step, 1)
        if opened <= pages.free:
            pages.free -= opened
            return opened, 0
        while opened > pages.available:
            self._retract(now_ns)
            retracted += 1
            opened = decoding.sums.opened(decoding.step, 1)
        if retracted:
            self._share.learn(decoding.asked - decoding.to_sample(), decoding.asked, len(decoding))
        if opened <= pages.free:
            pages.free -= opened
        else:
            for request, needed in decoding.openers():
                pages.take(needed, request)
        return opened, retracted

    def _retract(self, now_ns: int) -> None:
        """Send a decoding request to the back of the queue; its own pages are free then.

        One is always left to decode: rather than it, the request in the middle of its prefill gives way.
        """
        request = self._admission.chunked
        if len(self._decoding) > 1:
            request = self._decoding.to_retract()
            pages = self._decoding.end(request)
        else:
            assert request is not None
            self._admission.chunked = None
            pages = self._pages_of(request.computed)
        self._log.preemptions.append((request.index, len(self._log.starts), pages))
        request.preemptions += 1
        request.most_computed = max(request.most_computed, request.computed)
        self._pages.release(request, pages, now_ns, keep=False)
        request.computed = 0
        self._admission.waiting.join(request)
        self._admission.is_full = False

    def _pages_of(self, tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-tokens // self._page)

    # -- the record --------------------------------------------------------------------------------------------

    def _write_segment(self, decodes: int, opened: int, retracted: int, prefills: int) -> None:
        """Open a segment: the passes from the next one on, until another is opened, are alike."""
        pages, admission, decoding = self._pages, self._admission, self._decoding
        sums, waiting = decoding.sums, admission.waiting
        waits = admission.chunked is not None and not prefills
        self._log.segments += (
            len(self._log.starts),
            *((decodes, sums.context, sums.squares) if decodes else (0, 0, 0)),
            self.config.usable_kv_blocks - pages.available - opened,
            pages.tree.size,
            len(decoding.requests) + prefills + waits,
            *waiting.fresh,
            *waiting.again,
            retracted,
        )

    def check_integrity(self) -> None:
        """Check pool, tree and queues against each other (between two passes).

        Raises:
            AssertionError: they disagree (a defect of the program).
        """
        pages, chunked, decoding = self._pages, self._admission.chunked, self._decoding
        running = [*decoding.requests.values(), *([chunked] if chunked else [])]
        pages.tree.check_integrity([request.node for request in running])
        own = sum(decoding.sums.held(request, decoding.step) - request.shared for request in decoding.requests.values())
        if chunked is not None:
            own += self._pages_of(chunked.computed) - chunked.shared
        assert pages.free >= 0, "more pages are taken than there are"
        assert pages.free + own + pages.tree.size == self.config.usable_kv_blocks, "pages are lost"
        assert all(not request.shared for request in self._admission.waiting), "a waiting request holds pages"
        assert len(running) <= self.config.max_num_seqs, "more run than may"
