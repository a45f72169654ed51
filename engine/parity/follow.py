"""Plain servers that are looked at pass by pass, and can be put where another stands."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from engine.serving.composed import ComposedServer
from engine.serving.contract import ServerConfig
from engine.serving.members import Member, Members
from engine.serving.plain import PlainServer, Request, Work
from engine.serving.record import STORE
from engine.timing.contract import PassTimeSource


class WatchedServer(PlainServer):
    """A plain server that shows its last pass: batch, queue and free blocks after scheduling, blocks stored, removed.

    Its record is not kept.
    """

    def __init__(self, config: ServerConfig, timing: PassTimeSource) -> None:
        super().__init__(config, timing)
        self.forget()

    def forget(self) -> None:
        """Show a pass that did not happen."""
        self.batch: list[Member] = []
        self.stored: list[int] = []
        self.removed: list[int] = []
        self.waiting = [request.index for request in self._waiting]
        self.free_blocks = self.pool.num_free

    def run(self, at: int) -> None:
        """The pass ``at``, which takes a tick; nothing where there is no work."""
        self.forget()
        if self.has_work:
            self.advance(at, at + 1)

    def next_batch(self, at: int) -> list[Member]:
        """The batch that would be formed; the server cannot go on afterwards."""
        self.forget()
        if self.has_work:
            self._schedule(at)
        return self.batch

    def stand_where(self, other: PlainServer) -> None:
        """Take over another server's pool, queues and requests as they are between two passes."""
        live: dict[int, Request] = {
            request.index: replace(request, blocks=list(request.blocks), stretch=None)
            for request in (*other._running, *other._waiting)
        }
        self.pool = other.pool.copy()
        self._requests = live
        self._running = [live[request.index] for request in other._running]
        self._waiting = deque(live[request.index] for request in other._waiting)

    def drop(self, index: int, at: int) -> None:
        """Abort a request if it is here."""
        if index in self._requests:
            self.abort(index, at)

    def _schedule(self, now_ns: int) -> list[Work]:
        work = super()._schedule(now_ns)
        self.batch = [(w.request.index, w.computed_before, w.tokens) for w in work]
        self.waiting = [request.index for request in self._waiting]
        self.free_blocks = self.pool.num_free
        return work

    def _write_event(self, kind: int, request: Request, keys: Sequence[int], released_ns: int) -> None:
        (self.stored if kind == STORE else self.removed).extend(keys)


class RecordedServer(WatchedServer, ComposedServer):
    """Forms the recorded batches, so that its state is the recorded one."""

    def __init__(self, config: ServerConfig, timing: PassTimeSource, batches: Members) -> None:
        ComposedServer.__init__(self, config, timing, batches)
        self.forget()
