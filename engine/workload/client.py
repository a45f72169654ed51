"""The client: plays the trace's conversation trees on the simulated clock.

* A turn is *scheduled* when everything that it waits for is over (:mod:`engine.workload.graph`): by default its think
  time after the previous response of its conversation, or after the last child that the previous turn spawned; where
  the trace says what waits for what, when the last of its edges fires. It is sent ``dispatch_lag`` later and reaches
  the engine ``request_latency`` after that. A response ends at the client ``response_latency`` after the pass that
  sampled its last token. A turn that continues a request in flight is not scheduled before that one ends.
* A lane holds one play until nothing of it is due or in flight; then it takes the next at once. What waits for a
  canceled turn is never sent.
* The host model (:mod:`engine.workload.host`) delays what the client sees, and so what follows from it.
* Nothing is sent at or after the admission deadline. What is in flight a grace later is canceled; the engine learns of
  that like of a request, between two passes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

from engine.serving.contract import Finished, ServedRequest
from engine.traces.tree import Trace
from engine.workload.content import BlockKeys
from engine.workload.corpus import Corpus, lane_starts, single_requests
from engine.workload.host import HostModel
from engine.workload.idle import IdleCaps, IdleShift, excess_ns
from engine.workload.live import LiveConversation, LivePlay, LiveTree, Sent
from engine.workload.making import PlayMaker
from engine.workload.timers import Timers

MS = 1_000_000
S = 1_000_000_000


class Client:
    """The client of one replay.

    The event loop asks :attr:`next_ns` when something will reach the engine, hands it over with :meth:`due` and
    :meth:`aborts`, and reports what finished with :meth:`finished`. ``knobs`` are complete (``engine.knobs``);
    latencies that are negative count as 0.

    ``primed`` has the phase of each request that was sent before the profile by count, not by time, with its number in
    its lane: those are the first of ``sent``, as many as it has. ``shifts`` are the idle times that were cut short.

    Raises:
        GapscopeError: the trace does not record what the knobs need (arrivals, starts).
    """

    def __init__(self, trace: Trace, knobs: Mapping[str, Any], keys: BlockKeys) -> None:
        self.trace = trace
        self.sent = Sent()
        self.plays: list[LivePlay] = []
        self.primed: Sequence[tuple[str, int]] = ()
        self.shifts: list[IdleShift] = []
        self.exhausted_ns: int | None = None  # when a lane first found no play left
        self.start_ns = -_ns(knobs["warmup_s"], S)
        self.deadline_ns = _ns(knobs["duration_s"], S) or None
        self.cancel_ns = None if self.deadline_ns is None else self.deadline_ns + _ns(knobs["grace_s"], S)
        self.host = HostModel.of(knobs)
        self._request_latency_ns = _ns(knobs["request_latency_ms"], MS)
        self._caps = IdleCaps.of(knobs)
        self._idle_ns = self.start_ns  # since when nothing is in flight, if nothing is
        lag_ns = _ns(knobs["dispatch_lag_ms"], MS)
        self._timers = Timers(lag_ns, self._request_latency_ns, movable=self._caps is not None)
        self._timers.deadline_ns = self.deadline_ns
        self._make = PlayMaker(trace, knobs, keys, always_trees=self._caps is not None)
        self._trees: dict[int, LiveTree] = {}  # those in progress, by lane; kept where there are idle caps
        self._ended: list[tuple[int, int, int]] = []  # not yet followed: end at the client, order of finish, request
        self._num_ended = 0
        self._open: dict[int, LiveConversation] = {}
        self._canceled = False
        self._starts = deque(lane_starts(trace, knobs, self.start_ns, self.deadline_ns))
        self._goes_on = knobs["arrivals"] in ("lanes", "concurrency")  # a lane that is free takes the next play
        self._requests = single_requests(trace) if knobs["arrivals"] == "concurrency" else None
        self._corpus = Corpus(
            len(trace.plays) if self._requests is None else len(self._requests),
            max(1, len(self._starts)),
            shared=self._requests is not None or (self._goes_on and knobs["lane_assignment"] == "cursor"),
            wrap=bool(knobs["wrap"]),
        )

    @property
    def next_ns(self) -> int | None:
        """When the client will act next; None: not before a request finishes."""
        queue = self._timers.queue
        at = queue[0][0] if queue else None
        if self._starts and (at is None or self._starts[0][0] < at):
            at = self._starts[0][0]
        if self._ended and (at is None or self._ended[0][0] < at):
            at = self._ended[0][0]
        if self.cancel_ns is not None and self._open and not self._canceled:
            abort = self.cancel_ns + self._request_latency_ns
            if at is None or abort < at:
                at = abort
        return at

    def due(self, now_ns: int) -> list[ServedRequest]:
        """What reached the engine by ``now_ns``, in order of arrival."""
        while self._ended and self._ended[0][0] <= now_ns:
            end, _, index = heappop(self._ended)
            self._follow(index, end)
        if self._starts and self._starts[0][0] <= now_ns:
            self._start_lanes(now_ns)
            if self._caps:
                self._cap_idle(now_ns)
        out = []
        queue, sent, latency = self._timers.queue, self.sent, self._request_latency_ns
        while queue and queue[0][0] <= now_ns:
            at, _, talk, turn, scheduled = heappop(queue)
            live = talk.live
            if live.graph is not None and self._held(talk, turn, scheduled, at - latency):
                continue
            index, walk = len(sent.turn), talk.walk
            sent.conversation.append(talk)
            sent.turn.append(turn)
            sent.scheduled_ns.append(scheduled)
            sent.dispatched_ns.append(at - latency)
            sent.end_ns.append(-1)
            sent.ok.append(False)
            live.sent += 1
            self._open[index] = talk
            output = talk.conversation.turns[turn].output_tokens
            if live.graph is not None:
                self._dispatched(talk, turn, index, at - latency)
            prompt, keys = walk.prompt_tokens[turn], walk.keys[turn]
            out.append(ServedRequest(index, prompt, output, keys, None, live.number, talk.spawned_by))
        return out

    def aborts(self, now_ns: int) -> list[int]:
        """Requests that the client canceled, once the engine can know it (``now_ns``); empty before and after."""
        if self._canceled or self.cancel_ns is None or now_ns < self.cancel_ns + self._request_latency_ns:
            return []
        self._canceled = True
        indices = list(self._open)
        for index in indices:
            self.sent.end_ns[index] = self.cancel_ns
        self._open.clear()
        return indices

    def finished(self, done: Finished) -> None:
        """The last token of a request was sampled; calls come in order of ``done.end_ns``."""
        index = done.index
        del self._open[index]
        end = self.seen_ns(done)
        if self.cancel_ns is not None and end > self.cancel_ns:  # the response was still on its way
            self.sent.end_ns[index] = self.cancel_ns
            return
        self.sent.end_ns[index] = end
        self.sent.ok[index] = True
        if self.host.keeps_order:
            self._follow(index, end)
        else:  # one that the engine completes later may end before
            self._num_ended += 1
            heappush(self._ended, (end, self._num_ended, index))

    def failed(self, index: int, end_ns: int) -> None:
        """A response broke off: what waits for it is never sent. Real servers do that, simulated ones never."""
        talk = self._open.pop(index)
        self.sent.end_ns[index] = end_ns
        live = talk.live
        drained = True
        if isinstance(live, LiveTree):
            live.in_flight -= 1
            live.active -= 1 + len(live.held.pop(talk.first + self.sent.turn[index], ()))
            drained = not live.active
        self._freed(live, end_ns, drained)

    def seen_ns(self, done: Finished) -> int:
        """When the client sees the last token of a request, which ends the response."""
        if self.host.keeps_order:
            return done.end_ns + self.host.chunk_ns
        prompt = self.sent.conversation[done.index].walk.prompt_tokens[self.sent.turn[done.index]]
        first = done.first_token_ns + self.host.first_ns(prompt - done.cached_tokens)
        return max(done.end_ns, first) + self.host.chunk_ns

    @property
    def never_issued(self) -> int:
        """Turns that were not sent, of the plays of which at least one was; history is not counted."""
        return sum(play.turns - play.sent for play in self.plays if play.begun)

    # What follows from an event.

    def _follow(self, index: int, end_ns: int) -> None:
        """What the client does when a response ended: what waited for it, or the lane's next play."""
        talk = self.sent.conversation[index]
        live = talk.live
        if isinstance(live, LiveTree):
            self._fire(live, talk.first + self.sent.turn[index], end_ns)
            drained = not live.active
        else:
            turn = self.sent.turn[index] + 1
            drained = turn == talk.stop
            if not drained:
                self._timers.arm(talk, turn, end_ns + self._make.think_ns(talk, turn))
        self._freed(live, end_ns, drained)

    def _freed(self, live: LivePlay, end_ns: int, drained: bool) -> None:
        """A response of this play is over, and with it the play if that is ``drained``."""
        if drained:
            self._trees.pop(live.lane, None)
            if self._starts:
                self._start_lanes(end_ns)  # a shared cursor serves who came first
            if self._goes_on:
                self._take(live.lane, end_ns)
        if self._caps:
            self._cap_idle(end_ns, live)

    def _fire(self, live: LiveTree, node: int, end_ns: int) -> None:
        """A response of a tree ended: fire the edges from it, and let go who waits to continue it."""
        live.active -= 1
        live.in_flight -= 1
        self._fire_edges(live, live.graph.on_completion[node], end_ns)
        for other, due in live.held.pop(node, ()):
            self._arm_node(live, other, max(due, end_ns))
            live.active -= 1  # it was counted when it was due first

    def _fire_edges(self, live: LiveTree, edges: Sequence[tuple[int, int]], at_ns: int) -> None:
        due, waits = live.due_ns, live.waits
        for node, delay in edges:
            due[node] = max(due[node], at_ns + delay)
            waits[node] -= 1
            if not waits[node]:
                self._arm_node(live, node, due[node])

    def _arm_node(self, live: LiveTree, node: int, due_ns: int) -> None:
        not_before = live.graph.not_before[node]
        if not_before >= 0:
            due_ns = max(due_ns, live.begin_ns + not_before)
        live.active += 1
        self._timers.arm(self._make.talk(live, live.graph.conversation[node]), live.graph.turn[node], due_ns)

    def _held(self, talk: LiveConversation, turn: int, scheduled_ns: int, dispatch_ns: int) -> bool:
        """Whether this turn continues a request whose response has not ended at its dispatch; then it waits for it."""
        live = talk.live
        assert isinstance(live, LiveTree)
        node = talk.first + turn
        before = live.graph.extends[node]
        index = -1 if before < 0 else live.index[before]
        if index < 0:
            return False
        if index in self._open:
            live.held.setdefault(before, []).append((node, scheduled_ns))
            return True
        end = self.sent.end_ns[index]
        if end > dispatch_ns:
            self._timers.arm(talk, turn, max(scheduled_ns, end))
        return end > dispatch_ns

    def _dispatched(self, talk: LiveConversation, turn: int, index: int, at_ns: int) -> None:
        live = talk.live
        assert isinstance(live, LiveTree)
        node = talk.first + turn
        live.in_flight += 1
        live.index[node] = index
        if talk.parent is not None and talk.spawned_by < 0:
            talk.spawned_by = live.index[talk.parent.first + (talk.conversation.after_turn or 0)]
        self._fire_edges(live, live.graph.on_dispatch[node], at_ns)

    # Plays and lanes.

    def _start_lanes(self, until_ns: int) -> None:
        while self._starts and self._starts[0][0] <= until_ns:
            at, lane = self._starts.popleft()
            self._take(lane, at, first=True)

    def _take(self, lane: int, now_ns: int, first: bool = False) -> None:
        """Give a free lane its next play, if there is one; ``first`` is where trajectories are cut."""
        if self.deadline_ns is not None and now_ns >= self.deadline_ns:
            return
        taken = self._corpus.take(lane)
        if taken is None:
            if self.exhausted_ns is None:
                self.exhausted_ns = now_ns
            return
        incarnation, at = taken
        if self._requests is None:
            live = self._make.play(at, lane, incarnation, first)
            live.number = len(self.plays)
            self.plays.append(live)
            self._begin(live, now_ns)
        else:
            number, conversation, turn = self._requests[at]
            talk = self._make.single(number, conversation, turn, lane, incarnation)
            talk.live.number = len(self.plays)
            self.plays.append(talk.live)
            self._timers.arm(talk, turn, now_ns)

    def _begin(self, live: LivePlay, now_ns: int) -> None:
        """Start a play, or go on with it from where it was cut."""
        if isinstance(live, LiveTree):
            for node in live.begin(now_ns):
                self._arm_node(live, node, live.due_ns[node])
            if self._caps:
                self._trees[live.lane] = live
                self._cap_tree(live, now_ns)
            return
        talk = self._make.conversation(live)
        self._timers.arm(talk, 0, now_ns + self._make.think_ns(talk, 0))

    # Idle caps.

    def _cap_idle(self, now_ns: int, live: LivePlay | None = None) -> None:
        """Do not let it last too long that nothing is in flight, of the play whose response ended now, or at all."""
        assert self._caps is not None
        if self.deadline_ns is not None and now_ns >= self.deadline_ns:
            return
        if isinstance(live, LiveTree):
            self._cap_tree(live, now_ns)
        if self._open or self._ended:
            return
        if live is not None:
            self._idle_ns = now_ns
        times = [t for t in (self._timers.first_ns(), self._starts[0][0] if self._starts else None) if t is not None]
        excess = excess_ns(self._idle_ns, now_ns, min(times, default=None), self._caps.global_ns)
        if excess > 0:
            timers = self._timers.forward(excess) + len(self._starts)
            self._starts = deque((at - excess, lane) for at, lane in self._starts)
            for tree in self._trees.values():
                _move(tree, excess)
            self.shifts.append(IdleShift(now_ns, None, excess, timers))

    def _cap_tree(self, live: LiveTree, now_ns: int) -> None:
        assert self._caps is not None
        if live.in_flight or not live.active or not self._caps.tree_ns:
            return
        excess = excess_ns(now_ns, now_ns, self._timers.first_ns(live), self._caps.tree_ns)
        if excess > 0:
            timers = self._timers.forward(excess, live)
            _move(live, excess)
            self.shifts.append(IdleShift(now_ns, live, excess, timers))


def _move(live: LiveTree, by_ns: int) -> None:
    """Move what a play waits for besides its timers."""
    live.begin_ns -= by_ns
    live.due_ns = [due - by_ns for due in live.due_ns]


def _ns(value: float, unit: int) -> int:
    return max(0, round(value * unit))
