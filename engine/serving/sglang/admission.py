"""Whose prompts SGLang computes in a pass: who is in the middle of one goes on, and the queue is let in behind it."""

from __future__ import annotations

from dataclasses import dataclass

from engine.serving.contract import ServerConfig
from engine.serving.sglang.log import Log
from engine.serving.sglang.pages import Pages
from engine.serving.sglang.queue import WaitingQueue
from engine.serving.sglang.request import Request, Work

_UNLIMITED = 1 << 62


@dataclass(slots=True)
class _Left:
    """Of one pass: tokens of the pool that are spoken for, and prompt tokens that it may still take."""

    held: float
    input: int
    chunk: int

    def spend(self, paged: int, to_sample: int) -> None:
        """Somebody computes so many tokens, in whole pages, and is to sample others later."""
        self.held += paged + to_sample
        self.input -= paged
        self.chunk -= paged


class Admission:
    """The waiting queue, and the request whose prompt was cut, if any (``chunked``).

    ``is_full``: nobody can be admitted until somebody leaves.
    """

    def __init__(self, config: ServerConfig, pages: Pages, log: Log) -> None:
        self.waiting = WaitingQueue(config.policy == "lpm" and config.prefix_caching, config.block_size)
        self.chunked: Request | None = None
        self.is_full = False
        self._config = config
        self._page = config.block_size
        self._pages = pages
        self._log = log

    @property
    def may_prefill(self) -> bool:
        """Whether the next pass could hold prompts."""
        return self.chunked is not None or (not self.is_full and len(self.waiting.requests) > 0)

    def form(self, now_ns: int, decoding: int, held: float) -> list[Work]:
        """The prefill work of a pass; its pages are taken. Who cannot be admitted holds up the rest of the queue.

        ``decoding`` requests decode, and ``held`` tokens of the pool are kept for them.
        """
        rules, page, ongoing = self._config.sglang, self._page, self.chunked
        seats = self._config.max_num_seqs - decoding
        if seats <= 0 and ongoing is None:
            self.is_full = True
            return []
        self.waiting.sort(self._pages.tree)
        mixed = decoding if rules.mixed_chunk else 0
        chunk = rules.chunked_prefill_size - mixed if rules.chunked_prefill_size else _UNLIMITED
        left = _Left(held + mixed, rules.max_prefill_tokens - mixed, chunk)
        batch: list[Work] = []
        if ongoing is not None:
            work = self._go_on(ongoing, left)
            if not work.tokens:
                return []  # it waits for pages, and so does the queue
            batch.append(work)
        admitted = self._let_in(now_ns, seats, left, len(batch))
        self._admit(admitted, now_ns)
        batch += admitted
        for request, before, tokens in batch:
            self._pages.take(-(-(before + tokens) // page) - before // page, request)
        return batch

    def _go_on(self, ongoing: Request, left: _Left) -> Work:
        """The next tokens of the prompt that was cut: whole pages, unless they are its last."""
        page, missing = self._page, ongoing.known - ongoing.computed
        tokens = min(missing, max(left.chunk, page), self._pages.available * page)
        if tokens < missing:
            tokens = tokens // page * page
        elif tokens:
            self.chunked = None
            left.held += min(ongoing.output_tokens - ongoing.sampled, self._config.sglang.clip_max_new_tokens)
        left.spend(-(-tokens // page) * page, 0)
        return Work(ongoing, ongoing.computed, tokens)

    def _let_in(self, now_ns: int, seats: int, left: _Left, taken: int) -> list[Work]:
        """Those of the queue that have room, in order; ``taken`` seats are taken by others in this pass."""
        config, page, pages, tree = self._config, self._page, self._pages, self._pages.tree
        clip = config.sglang.clip_max_new_tokens
        seats -= taken
        admitted: list[Work] = []
        for request in self.waiting:
            if len(admitted) >= seats:
                self.is_full = True
                break
            node, hits = tree.root, 0
            if config.prefix_caching:
                node, hits = tree.match(request.chain, (request.known - 1) // page)
            known = request.prompt_tokens + request.sampled
            missing = known - hits * page
            to_sample = min(request.output_tokens - request.sampled, clip)
            paged = -(-missing // page) * page
            if missing + to_sample >= pages.available * page - left.held:
                self.is_full = True
                break
            if paged >= left.input and taken + len(admitted):
                break
            tree.lock(node, tree.root)
            room = pages.available * page
            if missing + to_sample >= room - left.held:
                tree.unlock(node, now_ns)
                self.is_full = True
                break
            tokens = missing
            if paged > left.chunk:
                tokens = paged = left.chunk // page * page
                if tokens <= 0:
                    tree.unlock(node, now_ns)
                    break
                self.chunked = request
                to_sample = 0
            request.node, request.shared = node, hits
            admitted.append(Work(request, hits * page, tokens))
            left.spend(paged, to_sample)
            if room <= left.held:
                self.is_full = True
                break
            if left.input <= 0 or left.chunk <= 0:
                break
        return admitted

    def _admit(self, admitted: list[Work], now_ns: int) -> None:
        """Write down who left the queue."""
        if not admitted:
            return
        log, this = self._log, len(self._log.starts)
        ahead = self.waiting.admit_first(len(admitted))
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
