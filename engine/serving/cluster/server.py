"""Several replicas behind a router, as one server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

from engine.serving.cluster.merge import merge_records
from engine.serving.cluster.replica import NEVER, Replica
from engine.serving.cluster.routers import Router
from engine.serving.contract import Finished, ServedRequest, Server, ServerRecord
from engine.timing.contract import PassTimeSource


class Cluster:
    """Replicas that share nothing but a router (see :class:`engine.serving.contract.Server`).

    A request is routed when it arrives; its replica takes it, and learns of an abort, between two of its passes. No
    replica starts a pass before everything is known that can reach it by then. So it goes on only until another could
    finish something, since the client may answer that with a request for any of them. What finished is reported in
    order of time, and not before every replica has come so far.

    ``dropped_ns`` says when its replica let go of each request that was aborted.
    """

    def __init__(self, servers: Sequence[Server], router: Router, timing: PassTimeSource) -> None:
        self._replicas = [Replica(server, timing) for server in servers]
        self._next = [NEVER] * len(servers)  # when each would start a pass
        self._bound = [NEVER] * len(servers)  # before when it finishes nothing, if nothing comes
        self._router = router
        self._in_flight = [0] * len(servers)
        self._home: dict[int, int] = {}  # replica of each request in flight
        self._held: list[tuple[int, int, int, Finished]] = []  # to be reported: end, replica, order, what
        self.dropped_ns: dict[int, int] = {}

    @property
    def has_work(self) -> bool:
        """Whether anything waits, runs or is to be reported."""
        return bool(self._held) or min(self._next) < NEVER

    @property
    def next_ns(self) -> int:
        """When something happens next, if nothing comes."""
        return min(self._held[0][0] if self._held else NEVER, min(self._next))

    def receive(self, request: ServedRequest, now_ns: int) -> None:
        """Route a request that arrives now."""
        number = self._router.choose(request, self._in_flight)
        self._in_flight[number] += 1
        self._home[request.index] = number
        self._replicas[number].arrivals.append(request)
        self._wake(number, now_ns)

    def abort(self, index: int, now_ns: int) -> None:
        """Drop a request where it is; one whose last pass is under way is let go at the end of that."""
        number = self._home.pop(index, None)
        if number is None:
            return
        self._in_flight[number] -= 1
        ending = [entry for entry in self._held if entry[3].index == index]
        if ending:
            self.dropped_ns[index] = ending[0][0]
            self._held.remove(ending[0])
            heapify(self._held)
            return
        replica = self._replicas[number]
        self.dropped_ns[index] = max(replica.ready_ns, now_ns)
        replica.aborts.append(index)
        self._wake(number, now_ns)

    def _wake(self, number: int, now_ns: int) -> None:
        """Have a replica look at what came now: at once if it is idle, after its pass if not. No plan goes further."""
        at = max(self._replicas[number].ready_ns, now_ns)
        self._next[number] = min(self._next[number], at)
        self._bound[number] = at + 1

    def advance(self, now_ns: int, until_ns: int | None) -> tuple[int, list[Finished]]:
        """Run the replicas until something has finished everywhere, or none may start a pass before ``until_ns``.

        Returns the time that was reached, the end of what finished included.
        """
        until = NEVER if until_ns is None else until_ns
        replicas, starts, bounds, held = self._replicas, self._next, self._bound, self._held
        while True:
            start = min(starts)
            if held and held[0][0] <= start and held[0][0] <= until:
                return self._report()
            if start >= until:
                return (now_ns if until_ns is None else until_ns), []
            number = starts.index(start)
            starts[number] = bounds[number] = NEVER
            replica = replicas[number]
            replica.take(start)
            if replica.server.has_work:
                # What another finishes, and what is held, may be answered at its end.
                limit = min(until, min(bounds), held[0][0] if held else NEVER)
                for order, done in enumerate(replica.run(start, limit)):
                    heappush(held, (done.end_ns, number, order, done))
                if replica.server.has_work:
                    replica.look_ahead()
                    starts[number], bounds[number] = replica.ready_ns, replica.bound_ns

    def _report(self) -> tuple[int, list[Finished]]:
        """What ended first; ``pass_index`` counts the passes of all replicas then, as far as it is known."""
        held, end_ns = self._held, self._held[0][0]
        finished = []
        while held and held[0][0] == end_ns:
            _, number, _, done = heappop(held)
            self._replicas[number].passes = done.pass_index + 1
            self._in_flight[number] -= 1
            del self._home[done.index]
            finished.append(replace(done, pass_index=sum(replica.passes for replica in self._replicas) - 1))
        return end_ns, finished

    def finish(self) -> ServerRecord:
        """What all replicas did, replica after replica."""
        return merge_records([(number, 0, replica.server.finish()) for number, replica in enumerate(self._replicas)])
