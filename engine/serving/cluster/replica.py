"""One server of several: when it may start its next pass, what it has not taken yet, and what it will do."""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress

from engine.errors import GapscopeError
from engine.serving.clock import LATEST_NS, check_time
from engine.serving.cluster.lockstep import LockstepServer
from engine.serving.contract import Finished, ServedRequest, Server, Stepped
from engine.timing.contract import PassTimeSource, decode_run
from engine.timing.hidden import gap_ns

AHEAD = 64
"""Passes of a replica that are planned at most: what comes to it makes the rest of its plan void."""
NEVER = LATEST_NS


class Replica:
    """A server, when it may start its next pass, and what it has not taken yet.

    One that can be led pass by pass also has a plan: what it will do while it only decodes, unless something comes. The
    passes of the plan are priced and not run, so it says before when nothing can finish there. It is ``stalled`` where
    nobody had room in the pass that it was to form; then it goes on when something has come or gone.
    """

    def __init__(self, server: Server, timing: PassTimeSource) -> None:
        self.server = server
        self.ready_ns = -NEVER
        self.arrivals: list[ServedRequest] = []
        self.aborts: list[int] = []
        self.passes = 0  # up to the last finish
        self.stalled = False
        self._timing = timing
        self._stepped = server if isinstance(server, Stepped) else None
        self._starts: list[int] = []
        self._durations: list[int] = []
        self._after_ns = 0  # when the pass after the plan may start

    @property
    def bound_ns(self) -> int:
        """Before this time it finishes nothing, if nothing comes."""
        return self._starts[-1] + self._durations[-1] if self._starts else self.ready_ns + 1

    def take(self, now_ns: int) -> None:
        """Take what came since the pass before."""
        if not self.arrivals and not self.aborts:
            return
        self.forget_plan()
        for request in self.arrivals:
            self.server.receive(request, now_ns)
        for index in self.aborts:
            self.server.abort(index, now_ns)
        self.arrivals.clear()
        self.aborts.clear()

    def forget_plan(self) -> None:
        """Something came or went, so the next passes are others than planned."""
        self._starts, self._durations = [], []

    def run(self, start_ns: int, limit_ns: int) -> list[Finished]:
        """Run passes that start before a limit, until one finishes a request.

        Raises:
            GapscopeError: simulated time is over.
        """
        finished = self._run(start_ns, limit_ns)
        check_time(self.ready_ns)
        return finished

    def _run(self, start_ns: int, limit_ns: int) -> list[Finished]:
        if self._stepped is None:
            self.ready_ns, finished = self.server.advance(start_ns, limit_ns)
            self.stalled = isinstance(self.server, LockstepServer) and self.server.stalled
            return finished
        server, timing = self._stepped, self._timing
        self.stalled = False
        server.begin(start_ns)
        while True:
            if not self._starts and server.quiet_passes():
                self._plan(1, start_ns)
            if self._starts:
                done = bisect_left(self._starts, limit_ns)
                server.skip(self._starts[:done], self._durations[:done])
                self._starts, self._durations = self._starts[done:], self._durations[done:]
                start_ns = self._starts[0] if self._starts else self._after_ns
            else:
                batch = server.schedule(start_ns)
                if not (batch[0] or batch[3]):
                    batch = server.schedule(start_ns)
                if not (batch[0] or batch[3]):
                    self.stalled, self.ready_ns = True, start_ns
                    return []
                duration = timing.pass_ns(*batch) + server.restore_ns
                server.complete(start_ns, duration)
                start_ns += duration + gap_ns(timing, duration)
            finished = server.let_go(start_ns)
            start_ns += server.late_ns
            if finished or start_ns >= limit_ns or not server.has_work:
                self.ready_ns = start_ns
                return finished

    def look_ahead(self) -> None:
        """Plan what comes next, where there is no plan."""
        if self._stepped is not None and not self._starts:
            quiet = self._stepped.quiet_passes()
            if quiet > 1:
                with suppress(GapscopeError):  # a pass that is refused, and may never come
                    self._plan(min(quiet, AHEAD), self.ready_ns)

    def _plan(self, count: int, start_ns: int) -> None:
        assert self._stepped is not None
        self._starts, self._durations, self._after_ns = decode_run(
            self._timing, self._stepped.num_decoding, self._stepped.contexts(count), start_ns, NEVER
        )
