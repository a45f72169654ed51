"""vLLM's asynchronous scheduling: every batch is formed while the pass before it runs. The plain core with that rule.

Batch i + 1 is formed at the start of pass i. Here that happens at the start of its own pass, of what was known then:
who samples the last token in pass i takes no part in it, but still has seat and blocks, and what came during pass i is
not in the queue yet. Where such a batch would be empty there is none, and the next is formed at the end of pass i.
"""

from __future__ import annotations

from engine.serving.contract import Batch, Finished, ServedRequest, ServerConfig
from engine.serving.plain import PlainServer, Request, Work
from engine.serving.reserving import ReservingServer
from engine.serving.skipping.ahead import AheadSkippingServer
from engine.serving.variants import VariantServer
from engine.timing.contract import PassTimeSource
from engine.timing.hidden import hidden_ns


class AheadPlainServer(PlainServer):
    """One replica (see :class:`engine.serving.contract.Server`) that forms each batch during the pass before."""

    def __init__(self, config: ServerConfig, timing: PassTimeSource) -> None:
        super().__init__(config, timing)
        self._arrivals: list[Request] = []  # since the last batch was formed
        self._aborts: list[tuple[Request, int]] = []  # likewise, and when
        self._done: list[
            tuple[Request, int]
        ] = []  # have sampled their last token, when, and still hold seat and blocks
        self._done_in_vain: list[Request] = []  # of them, those that were preempted

    @property
    def has_work(self) -> bool:
        """Whether anything is to come that is not finished."""
        return bool(self._waiting or self._arrivals) or len(self._running) > len(self._done)

    def receive(self, request: ServedRequest, now_ns: int) -> None:
        """Take a request; see :meth:`PlainServer.receive`. It is in the queue once the next batch is formed."""
        super().receive(request, now_ns)
        self._arrivals.append(self._waiting.pop())

    def abort(self, index: int, now_ns: int) -> None:
        """Drop a request that is not finished; one that may be in the next batch once that has run."""
        request = self._requests[index]
        if request in self._arrivals:
            self._arrivals.remove(request)
            request.aborted = True
        is_over = request.sampled == request.output_tokens or request.aborted
        if not is_over and all(given_up is not request for given_up, _ in self._aborts):
            self._aborts.append((request, now_ns))

    def schedule(self, now_ns: int) -> Batch:
        """Form the batch of the next pass; if nobody is in it, another of what there is at its start."""
        batch = super().schedule(now_ns)
        if not self._batch:
            self._free_seats()
            self._take_arrivals()
            batch = super().schedule(now_ns)
        return batch

    def let_go(self, next_start_ns: int) -> list[Finished]:
        """See :meth:`PlainServer.let_go`."""
        return super().let_go(next_start_ns + self.late_ns)

    def _update(self, batch: list[Work], end_ns: int) -> list[Finished]:
        """Sample; then what came before the pass is seen, and those are gone who were done when it began."""
        self._free_seats()
        finished = super()._update(batch, end_ns)
        self._take_arrivals()
        for request, now_ns in self._aborts:
            self._drop(request, now_ns)
        self._aborts.clear()
        seats_are_taken = len(self._running) >= self.config.max_num_seqs
        drained = len(self._running) == len(self._done) and (seats_are_taken or not self._waiting)
        self.late_ns = hidden_ns(self._timing, end_ns - self._passes[-1][0]) if drained else 0
        return [done for done in finished if not self._requests[done.index].aborted]

    def _drop(self, request: Request, now_ns: int) -> None:
        self._done = [entry for entry in self._done if entry[0] is not request]
        super().abort(request.index, now_ns)

    def _depart(self, request: Request, end_ns: int) -> None:
        self._done.append((request, end_ns))

    def _free_seats(self) -> None:
        """Seats and blocks of those who are done; who was preempted though it was done is in the queue no more."""
        for request, end_ns in self._done:
            super()._depart(request, end_ns)
        for request in self._done_in_vain:
            self._waiting.remove(request)
        self._done.clear()
        self._done_in_vain.clear()

    def _take_arrivals(self) -> None:
        self._waiting += self._arrivals
        self._arrivals.clear()

    def _preempt(self, request: Request, now_ns: int) -> None:
        super()._preempt(request, now_ns)
        if request.sampled == request.output_tokens:
            self._done = [entry for entry in self._done if entry[0] is not request]
            self._done_in_vain.append(request)


class AheadVariantServer(AheadPlainServer, VariantServer):
    """The same for rules that depart from vLLM's."""


class AheadReservingServer(AheadSkippingServer, ReservingServer):
    """The same for requests that have all their blocks from their admission on, from event to event."""
