"""A client that warms the caches before the profile: primers, warm-up requests, and a barrier."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Any

from engine.serving.contract import Finished, ServedRequest
from engine.traces.tree import Trace
from engine.workload.client import Client, S
from engine.workload.content import BlockKeys
from engine.workload.live import LiveConversation, LivePlay, LiveTree

PRIMER_TOKENS = 1
"""What a primer and a warm-up request put out."""
Script = deque[tuple[LiveConversation, int, str, int]]
"""What a lane has left to send before the barrier: conversation, turn, phase, and number in the phase."""


def make_client(trace: Trace, knobs: Mapping[str, Any], keys: BlockKeys) -> Client:
    """The client that complete knobs ask for.

    Raises:
        GapscopeError: the trace does not record what they need.
    """
    return (PrimedClient if knobs["prime"] else Client)(trace, knobs, keys)


class PrimedClient(Client):
    """Sends the primers of each lane's first play, one after the other, then warm-up requests that repeat them in turn.

    Lanes work side by side. When the last response ended, nothing is left at the server either: the barrier opens, the
    plays go on from their cuts, and the profile begins. Only then is its time known: the clock of this client starts
    at 0 with the primers, and :meth:`rebase` moves all of it so that the profile starts at 0.
    """

    def __init__(self, trace: Trace, knobs: Mapping[str, Any], keys: BlockKeys) -> None:
        super().__init__(trace, knobs, keys)
        self.primed: list[tuple[str, int]] = []
        self.origin_ns: int | None = None  # when the barrier opened
        self._duration_ns, self._until_cancel_ns = self.deadline_ns, self.cancel_ns
        self.deadline_ns = self.cancel_ns = self._timers.deadline_ns = None
        self._repeats = int(knobs["warmup_requests"])
        self._lag_ns = max(0, round(knobs["dispatch_lag_ms"] * S / 1000))
        self._waiting: list[LivePlay] = []
        self._scripts: list[Script] = []  # by primed request: that of its lane
        self._calls: list[tuple[int, int, Script, int]] = []  # at the engine, order, ., scheduled
        self._made = 0
        self._busy = 0  # lanes that have something left to send, or in flight
        self._latest_ns = self.start_ns

    @property
    def next_ns(self) -> int | None:
        """When the client will act next; None: not before a request finishes."""
        if self.origin_ns is not None:
            return super().next_ns
        times = [self._calls[0][0]] if self._calls else []
        times += [self._starts[0][0]] if self._starts else []
        return min(times, default=None)

    def due(self, now_ns: int) -> list[ServedRequest]:
        """What reached the engine by ``now_ns``, in order of arrival."""
        out: list[ServedRequest] = []
        if self.origin_ns is None:
            if self._starts and self._starts[0][0] <= now_ns:
                self._start_lanes(now_ns)
                self._open_if_done()
            while self._calls and self._calls[0][0] <= now_ns:
                at, _, script, scheduled = heappop(self._calls)
                out.append(self._call(script, scheduled, at - self._request_latency_ns))
        return out if self.origin_ns is None else out + super().due(now_ns)

    def finished(self, done: Finished) -> None:
        """The last token of a request was sampled; calls come in order of ``done.end_ns``."""
        if done.index >= len(self.primed) or self.origin_ns is not None:
            super().finished(done)
            return
        self.sent.ok[done.index] = True
        self._primed_ended(done.index, self.seen_ns(done))

    def failed(self, index: int, end_ns: int) -> None:
        """A response broke off; a primer that did leaves its part of the cache cold."""
        if index >= len(self.primed) or self.origin_ns is not None:
            super().failed(index, end_ns)
        else:
            self._primed_ended(index, end_ns)

    def _primed_ended(self, index: int, end_ns: int) -> None:
        self.sent.end_ns[index] = end_ns
        self._latest_ns = max(self._latest_ns, end_ns)
        self._go_on(self._scripts[index], end_ns)
        self._open_if_done()

    def rebase(self) -> int:
        """Move every time that the client knows so that the profile starts at 0; returns by how much they went back."""
        by = self.origin_ns or 0
        sent = self.sent
        self.start_ns -= by
        self.exhausted_ns = None if self.exhausted_ns is None else self.exhausted_ns - by
        self.deadline_ns, self.cancel_ns = self._duration_ns, self._until_cancel_ns
        sent.scheduled_ns, sent.dispatched_ns, sent.end_ns = (
            [time - by for time in times] for times in (sent.scheduled_ns, sent.dispatched_ns, sent.end_ns)
        )
        self.shifts = [shift.moved(by) for shift in self.shifts]
        return by

    def _begin(self, live: LivePlay, now_ns: int) -> None:
        if self.origin_ns is not None:
            super()._begin(live, now_ns)
            return
        self._waiting.append(live)
        self._latest_ns = max(self._latest_ns, now_ns)
        script = Script()
        if isinstance(live, LiveTree) and live.cut is not None:
            graph, primers = live.graph, live.cut.primers
            phases = [("primer", n) for n in range(len(primers))] + [("warmup", n) for n in range(self._repeats)]
            for phase, n in phases if primers else ():
                node = primers[n % len(primers)]
                talk = self._make.talk(live, graph.conversation[node])
                script.append((talk, graph.turn[node], phase, n))
        self._busy += 1
        self._go_on(script, now_ns)

    def _go_on(self, script: Script, ready_ns: int) -> None:
        """Send the next request of a lane, if there is one."""
        if not script:
            self._busy -= 1
            return
        self._made += 1
        heappush(self._calls, (ready_ns + self._lag_ns + self._request_latency_ns, self._made, script, ready_ns))

    def _call(self, script: Script, scheduled_ns: int, dispatched_ns: int) -> ServedRequest:
        talk, turn, phase, number = script.popleft()
        index, sent = len(self.sent), self.sent
        sent.conversation.append(talk)
        sent.turn.append(turn)
        sent.scheduled_ns.append(scheduled_ns)
        sent.dispatched_ns.append(dispatched_ns)
        sent.end_ns.append(-1)
        sent.ok.append(False)
        self.primed.append((phase, number))
        self._scripts.append(script)
        prompt, keys = talk.walk.prompt_tokens[turn], talk.walk.keys[turn]
        return ServedRequest(index, prompt, PRIMER_TOKENS, keys, None, talk.live.number, talk.spawned_by)

    def _open_if_done(self) -> None:
        if self._busy or self._starts or self.origin_ns is not None:
            return
        at = self.origin_ns = self._idle_ns = self._latest_ns
        if self._duration_ns is not None and self._until_cancel_ns is not None:
            self.deadline_ns = self._timers.deadline_ns = at + self._duration_ns
            self.cancel_ns = at + self._until_cancel_ns
        for live in self._waiting:
            super()._begin(live, at)
        if self._caps:
            self._cap_idle(at)
