"""Batches that are formed while the pass before runs, from event to event (see :mod:`engine.serving.ahead`)."""

from __future__ import annotations

from engine.serving.contract import Batch, Finished, ServedRequest, ServerConfig
from engine.serving.skipping.request import ScheduledRequest
from engine.serving.skipping.server import SkippingServer
from engine.timing.contract import PassTimeSource
from engine.timing.hidden import hidden_ns


class AheadSkippingServer(SkippingServer):
    """One replica (see :class:`engine.serving.contract.Server`) that forms each batch during the pass before."""

    def __init__(self, config: ServerConfig, timing: PassTimeSource) -> None:
        super().__init__(config, timing)
        self._arrivals: list[ScheduledRequest] = []  # since the last batch was formed
        self._aborts: list[tuple[ScheduledRequest, int]] = []  # likewise, and when
        self._done: list[tuple[ScheduledRequest, int]] = []  # sampled their last token, when; hold seat and blocks
        self._done_in_vain: list[ScheduledRequest] = []  # of them, those that were preempted

    @property
    def has_work(self) -> bool:
        """Whether anything is to come that is not finished."""
        return bool(self._waiting or self._arrivals) or len(self._running) > len(self._done)

    def receive(self, request: ServedRequest, now_ns: int) -> None:
        """Take a request; see :meth:`SkippingServer.receive`. It is in the queue once the next batch is formed."""
        super().receive(request, now_ns)
        self._arrivals.append(self._waiting.pop())

    def abort(self, index: int, now_ns: int) -> None:
        """Drop a request that is not finished; one that may be in the next batch once that has run."""
        request = self._requests[index]
        if request in self._arrivals:
            self._arrivals.remove(request)
            self._content.retire(request)
            request.received_in = request.aborted_in = self._next_pass
            return
        runs = self._running.get(request.seq) is request and not self._is_done(request)
        if (runs or request in self._waiting) and all(given_up is not request for given_up, _ in self._aborts):
            self._aborts.append((request, now_ns))

    def quiet_passes(self) -> int:
        """See :meth:`SkippingServer.quiet_passes`; what came, and who is done, is seen to by a pass of its own."""
        return 0 if self._done or self._arrivals or self._aborts else super().quiet_passes()

    def schedule(self, now_ns: int) -> Batch:
        """Form the batch of the next pass; if nobody is in it, another of what there is at its start."""
        batch = super().schedule(now_ns)
        if not batch[0] and not batch[3]:
            self._free_seats(self._next_pass)
            self._take_arrivals()
            batch = super().schedule(now_ns)
        return batch

    def complete(self, now_ns: int, duration_ns: int) -> None:
        """See :meth:`SkippingServer.complete`.

        Then what came before the pass is seen, and those are gone who were done when it began.
        """
        self._free_seats(self._next_pass + 1)
        super().complete(now_ns, duration_ns)
        self._take_arrivals()
        for request, given_up_ns in self._aborts:
            super().abort(request.index, given_up_ns)
        self._aborts.clear()

    def let_go(self, next_start_ns: int) -> list[Finished]:
        """See :meth:`SkippingServer.let_go`."""
        finished = super().let_go(next_start_ns)
        seats_are_taken = len(self._running) >= self.config.max_num_seqs
        drained = len(self._running) == len(self._done) and (seats_are_taken or not self._waiting)
        self.late_ns = hidden_ns(self._timing, self._log.durations[-1]) if drained else 0
        self._next_start_ns += self.late_ns
        return finished

    def _is_done(self, request: ScheduledRequest) -> bool:
        return any(done is request for done, _ in self._done)

    def _depart(self, request: ScheduledRequest, end_ns: int) -> None:
        last = self._next_pass - 1
        _, fixed = self._end_stretch(request, last)
        filled = fixed // self.config.block_size if request.total_blocks else 0
        if filled > request.keyed:
            self._content.register(request, filled, last)
        self._done.append((request, end_ns))

    def _free_seats(self, gone_in: int) -> None:
        """Seats and blocks of those who are done; who was preempted though it was done is in the queue no more."""
        for request, end_ns in self._done:
            self._leave(request, end_ns)
            self._content.retire(request)
        for request in self._done_in_vain:
            self._waiting.remove(request)
            self._content.retire(request)
            request.gone_in = gone_in
        self._done.clear()
        self._done_in_vain.clear()

    def _take_arrivals(self) -> None:
        for request in self._arrivals:
            request.received_in = self._next_pass
        self._waiting += self._arrivals
        self._arrivals.clear()

    def _preempt(self, request: ScheduledRequest, now_ns: int) -> None:
        super()._preempt(request, now_ns)
        if self._is_done(request):
            self._done = [entry for entry in self._done if entry[0] is not request]
            self._done_in_vain.append(request)
