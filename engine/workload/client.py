"""Closed-loop client: lanes play the trace's conversation trees on the simulated clock.

* A turn is *scheduled* at ``ready + think``, sent ``dispatch_lag`` later, and reaches the engine ``request_latency``
  after that. A response ends at the client ``response_latency`` after the pass that sampled its last token.
* ``ready`` of a turn is the end of the previous response of its conversation, or of the last child that the previous
  turn spawned. Children start when the response that spawned them ended; a lane's first turn starts with its lane.
* A lane holds one play until its root conversation, joins included, ended; then it takes the next at once.
* The host model (:mod:`engine.workload.host`) delays what the client sees, and so what follows from it.
* Nothing is sent at or after the admission deadline. What is in flight a grace later is canceled; the engine learns of
  that like of a request, between two passes. A canceled turn ends its conversation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Any

from engine.errors import GapscopeError
from engine.serving.contract import Finished, ServedRequest
from engine.traces.tree import Conversation, Play, Trace
from engine.workload.content import BlockKeys, Mark, Walk
from engine.workload.host import HostModel

MS = 1_000_000
S = 1_000_000_000


class LivePlay:
    """A play that a lane has taken; ``incarnation`` counts how often the trace was wrapped before."""

    __slots__ = ("by_id", "incarnation", "lane", "play", "sent")

    def __init__(self, play: Play, lane: int, incarnation: int) -> None:
        self.play = play
        self.lane = lane
        self.incarnation = incarnation
        self.sent = 0
        conversations = play.conversations
        self.by_id = {c.conversation_id: c for c in conversations} if len(conversations) > 1 else {}


class LiveConversation:
    """A conversation in progress: the turn that comes next and the number of children that it waits for."""

    __slots__ = ("conversation", "live", "parent", "pending", "spawned_by", "turn", "walk")

    def __init__(
        self, live: LivePlay, conversation: Conversation, walk: Walk, parent: LiveConversation | None, spawned_by: int
    ) -> None:
        self.live = live
        self.conversation = conversation
        self.walk = walk
        self.parent = parent
        self.spawned_by = spawned_by
        self.turn = 0
        self.pending = 0


class Sent:
    """Every request that reached the engine, in that order: one column per fact, one row per request index.

    ``end_ns`` is -1 while the response has not ended; ``ok`` is False for what was canceled; ``spawned_by`` is the
    index of the request whose response started the conversation, -1 for a root.
    """

    def __init__(self) -> None:
        self.conversation: list[LiveConversation] = []
        self.turn: list[int] = []
        self.scheduled_ns: list[int] = []
        self.dispatched_ns: list[int] = []
        self.end_ns: list[int] = []
        self.ok: list[bool] = []

    def __len__(self) -> int:
        return len(self.turn)


class ClosedLoopClient:
    """The client of one replay.

    The event loop asks :attr:`next_ns` when something will reach the engine, hands it over with :meth:`due` and
    :meth:`aborts`, and reports what finished with :meth:`finished`. ``knobs`` are complete (``engine.knobs``);
    latencies that are negative count as 0.
    """

    def __init__(self, trace: Trace, knobs: Mapping[str, Any], keys: BlockKeys) -> None:
        self.trace = trace
        self.sent = Sent()
        self.plays: list[LivePlay] = []
        self.exhausted_ns: int | None = None  # when a lane first found no play left
        self.start_ns = -_ns(knobs["warmup_s"], S)
        self.deadline_ns = _ns(knobs["duration_s"], S) or None
        self.cancel_ns = None if self.deadline_ns is None else self.deadline_ns + _ns(knobs["grace_s"], S)
        self.host = HostModel.of(knobs)
        self._lag_ns = _ns(knobs["dispatch_lag_ms"], MS)
        self._request_latency_ns = _ns(knobs["request_latency_ms"], MS)
        self._think_scale = float(knobs["think_scale"])
        self._wrap = bool(knobs["wrap"])
        self._bust = knobs["cache_bust"] == "play"
        self._keys = keys
        self._queue: list[tuple[int, int, LiveConversation, int]] = []  # at the engine, order of creation, ., scheduled
        self._created = 0
        self._ended: list[tuple[int, int, int]] = []  # not yet followed: end at the client, order of finish, request
        self._num_ended = 0
        self._open: dict[int, LiveConversation] = {}
        self._canceled = False
        self._shared_cursor = knobs["lane_assignment"] == "cursor"
        if knobs["arrivals"] == "lanes":
            stagger = _ns(knobs["lane_stagger_ms"], MS)
            starts = [(self.start_ns + lane * stagger, lane) for lane in range(int(knobs["lanes"]))]
        else:  # a lane for every play, since nothing makes a play wait
            self._wrap = self._shared_cursor = False
            arrivals = [play.arrival_ns for play in trace.plays if play.arrival_ns is not None]
            if len(arrivals) < len(trace.plays):
                raise GapscopeError(
                    f"Knob arrivals=trace: {len(trace.plays) - len(arrivals)} of the {len(trace.plays)} plays of "
                    f"{trace.name} have no arrival time; expected a trace with timestamps, or arrivals=lanes."
                )
            first = min(arrivals)
            starts = sorted((self.start_ns + at - first, lane) for lane, at in enumerate(arrivals))
        self._starts = deque(starts)
        self._lanes = len(starts)
        self._taken = [0] * self._lanes  # plays, by lane; a shared cursor counts in [0]

    @property
    def next_ns(self) -> int | None:
        """When the client will act next; None: not before a request finishes."""
        at = self._queue[0][0] if self._queue else None
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
        out = []
        queue, sent, block_keys = self._queue, self.sent, ServedRequest
        while queue and queue[0][0] <= now_ns:
            at, _, live, scheduled = heappop(queue)
            index, turn, walk = len(sent.turn), live.turn, live.walk
            sent.conversation.append(live)
            sent.turn.append(turn)
            sent.scheduled_ns.append(scheduled)
            sent.dispatched_ns.append(at - self._request_latency_ns)
            sent.end_ns.append(-1)
            sent.ok.append(False)
            live.live.sent += 1
            self._open[index] = live
            output = live.conversation.turns[turn].output_tokens
            out.append(block_keys(index, walk.prompt_tokens[turn], output, walk.keys[turn]))
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

    def seen_ns(self, done: Finished) -> int:
        """When the client sees the last token of a request, which ends the response."""
        if self.host.keeps_order:
            return done.end_ns + self.host.chunk_ns
        prompt = self.sent.conversation[done.index].walk.prompt_tokens[self.sent.turn[done.index]]
        first = done.first_token_ns + self.host.first_ns(prompt - done.cached_tokens)
        return max(done.end_ns, first) + self.host.chunk_ns

    def _follow(self, index: int, end: int) -> None:
        """What the client does when a response ended: children, the next turn, the parent, or the next play."""
        live = self.sent.conversation[index]
        spawn = live.conversation.turns[live.turn].spawn
        live.turn += 1
        if not spawn:
            self._proceed(live, end)
            return
        live.pending = len(spawn)
        for name in spawn:
            child = live.live.by_id[name]
            base = live.walk.marks.get(live.turn - 1) if child.mode == "fork" else None
            self._begin(live.live, child, base, live, index, end)

    @property
    def never_issued(self) -> int:
        """Turns that were not sent, of the plays of which at least one was."""
        return sum(sum(len(c.turns) for c in p.play.conversations) - p.sent for p in self.plays if p.sent)

    def _start_lanes(self, until_ns: int) -> None:
        while self._starts and self._starts[0][0] <= until_ns:
            at, lane = self._starts.popleft()
            self._take(lane, at)

    def _take(self, lane: int, now_ns: int) -> None:
        """Give a free lane its next play, if there is one."""
        if self.deadline_ns is not None and now_ns >= self.deadline_ns:
            return
        slot = 0 if self._shared_cursor else lane
        number = self._taken[slot] if self._shared_cursor else lane + self._taken[slot] * self._lanes
        incarnation, at = divmod(number, len(self.trace.plays))
        if incarnation and not self._wrap:
            if self.exhausted_ns is None:
                self.exhausted_ns = now_ns
            return
        self._taken[slot] += 1
        live = LivePlay(self.trace.plays[at], lane, incarnation)
        self.plays.append(live)
        self._begin(live, live.play.conversations[0], None, None, -1, now_ns)

    def _begin(
        self,
        live: LivePlay,
        conversation: Conversation,
        base: Mark | None,
        parent: LiveConversation | None,
        spawned_by: int,
        ready_ns: int,
    ) -> None:
        walk = self._keys.walk(conversation, base, live.incarnation if self._bust else 0)
        self._send(LiveConversation(live, conversation, walk, parent, spawned_by), ready_ns)

    def _proceed(self, live: LiveConversation, ready_ns: int) -> None:
        """Go on after a response, or after the last child joined: the next turn, the parent, or the next play."""
        while live.turn == len(live.conversation.turns):
            if live.parent is None:
                if self._starts:
                    self._start_lanes(ready_ns)  # a shared cursor serves who came first
                self._take(live.live.lane, ready_ns)
                return
            live = live.parent
            live.pending -= 1
            if live.pending:
                return
        self._send(live, ready_ns)

    def _send(self, live: LiveConversation, ready_ns: int) -> None:
        think = live.conversation.turns[live.turn].think_ns
        if self._think_scale != 1.0:
            think = round(think * self._think_scale)
        scheduled = ready_ns + think
        dispatched = scheduled + self._lag_ns
        if self.deadline_ns is not None and dispatched >= self.deadline_ns:
            return
        self._created += 1
        heappush(self._queue, (dispatched + self._request_latency_ns, self._created, live, scheduled))


def _ns(value: float, unit: int) -> int:
    return max(0, round(value * unit))
