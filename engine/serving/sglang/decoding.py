"""SGLang's decode batch: who decodes, when each finishes, and what they are still to sample."""

from __future__ import annotations

from heapq import heappop, heappush

from engine.serving.contract import ServerConfig
from engine.serving.sglang.log import Log
from engine.serving.sglang.request import Request
from engine.serving.skipping.decodes import BurstDecodes, Decodes, SteadyDecodes


class DecodeBatch:
    """Requests by ``seq``, in the order in which they began to decode.

    Those decode passes in which they take part are numbered: ``step`` is the next one. ``sums`` are what the requests
    hold and read in each step, and ``asked`` is how many output tokens they asked for.
    """

    def __init__(self, config: ServerConfig, log: Log) -> None:
        self.requests: dict[int, Request] = {}
        self.step = 0
        self.sums: Decodes = (
            BurstDecodes(config.block_size, log.bursts, config.speculation)
            if config.speculation
            else SteadyDecodes(config.block_size)
        )
        self.asked = 0
        self._page = config.block_size
        self._clip = config.sglang.clip_max_new_tokens
        self._verifies = config.speculation is not None
        self._log = log
        self._to_compute = 0  # tokens that they will have computed in the end
        self._longer_than_clip = 0  # how many of them were to sample more than the clip
        self._finishes: list[tuple[int, int]] = []  # step, seq

    def __len__(self) -> int:
        return len(self.requests)

    def start(self, request: Request, this: int) -> None:
        """The request samples a token in the pass ``this`` and takes part in each decode step from the next on."""
        log = self._log
        request.row = len(log.decoding_ends)
        log.decoding += (request.index, request.seq, this, request.computed, self.step)
        log.decoding_ends.append(self.step)
        request.sampled += 1
        request.since = self.step - 1
        request.decoding = True
        self.requests[request.seq] = request
        self.asked += request.output_tokens
        self._to_compute += request.prompt_tokens + request.output_tokens - 1
        self._longer_than_clip += request.output_tokens - request.sampled > self._clip
        heappush(self._finishes, (self.sums.start(request, request.since), request.seq))

    def end(self, request: Request) -> int:
        """The request decodes no more; returns the pages that it holds."""
        self._longer_than_clip -= request.output_tokens - request.sampled > self._clip
        request.decoding = False
        self._log.decoding_ends[request.row] = self.step
        del self.requests[request.seq]
        self.asked -= request.output_tokens
        self._to_compute -= request.prompt_tokens + request.output_tokens - 1
        pages, _tokens = self.sums.end(request, self.step - 1)
        return pages

    def go_on(self, steps: int) -> None:
        """Every request took part in so many steps."""
        self.sums.advance(self.step, steps)
        self.step += steps

    def steps_to_finish(self, pages: int) -> int:
        """Steps up to the next in which a request finishes, as far as ``pages`` are enough for them."""
        sums, finishes = self.sums, self._finishes
        while finishes[0][1] not in self.requests:
            heappop(finishes)
        steps = finishes[0][0] - self.step + 1
        most = ((steps + 1) * sums.width // self._page + 1) * sums.count
        if most > pages and sums.opened(self.step, steps) > pages:
            return sums.passes_within(self.step, pages)
        return steps

    def finished(self) -> list[Request]:
        """Those that sampled their last token in the last step, in order of ``seq``; they are still to be ended."""
        finishes, last = self._finishes, self.step - 1
        finished: list[Request] = []
        while finishes and finishes[0][0] <= last:
            step, seq = heappop(finishes)
            if step == last and seq in self.requests:
                finished.append(self.requests[seq])
        return finished

    def openers(self) -> list[tuple[Request, int]]:
        """Who opens pages in the next step, in order of ``seq``, and how many."""
        openers = self.sums.openers(self.requests.values(), self.step)
        return sorted(openers, key=lambda opener: opener[0].seq)

    def to_retract(self) -> Request:
        """Who gives way first: whoever has the fewest outputs, of these the longest prompt; under speculation the last.

        (SGLang's drafts can be taken out of a batch at its end only.)
        """
        latest_first = reversed(self.requests.values())
        if self._verifies:
            return next(latest_first)
        return min(latest_first, key=lambda request: (self._sampled(request), -request.prompt_tokens))

    def to_sample(self) -> int:
        """Tokens that the requests are still to sample."""
        return self._to_compute - self.sums.context_of(self.step)

    def clipped_to_sample(self) -> int:
        """The same, with what each is to sample clipped."""
        if not self._longer_than_clip:
            return self.to_sample()
        clip = self._clip
        return sum(min(one.output_tokens - self._sampled(one), clip) for one in self.requests.values())

    def _sampled(self, request: Request) -> int:
        return self.sums.fixed(request, self.step) - request.prompt_tokens
