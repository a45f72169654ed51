"""What the client will send, in the order in which it reaches the engine."""

from __future__ import annotations

from heapq import heapify, heappush

from engine.workload.live import LiveConversation, LivePlay

Timer = tuple[int, int, LiveConversation, int, int]
"""When it reaches the engine, order of creation, conversation, turn, when it is scheduled."""


class Timers:
    """Turns that are due at a known time.

    A turn is dispatched ``lag_ns`` after it is scheduled and reaches the engine ``latency_ns`` later. Nothing is
    dispatched at or after ``deadline_ns``; such turns are kept where timers can move forward (``movable``).
    """

    def __init__(self, lag_ns: int, latency_ns: int, movable: bool) -> None:
        self.deadline_ns: int | None = None
        self.queue: list[Timer] = []
        self._late: list[Timer] = []
        self._lag_ns = lag_ns
        self._latency_ns = latency_ns
        self._movable = movable
        self._created = 0

    def arm(self, talk: LiveConversation, turn: int, scheduled_ns: int) -> None:
        """Send this turn of this conversation when it is time."""
        dispatched = scheduled_ns + self._lag_ns
        self._created += 1
        if self.deadline_ns is None or dispatched < self.deadline_ns:
            heappush(self.queue, (dispatched + self._latency_ns, self._created, talk, turn, scheduled_ns))
        elif self._movable:
            self._late.append((dispatched + self._latency_ns, self._created, talk, turn, scheduled_ns))

    def first_ns(self, live: LivePlay | None = None) -> int | None:
        """When the next turn is scheduled, of this play or of all; None: no turn is due at a known time."""
        return min((t[4] for t in (*self.queue, *self._late) if live is None or t[2].live is live), default=None)

    def forward(self, by_ns: int, live: LivePlay | None = None) -> int:
        """Move the timers of this play, or all, so much forward; returns how many there are."""
        moved: list[Timer] = []
        kept: list[Timer] = []
        for timer in (*self.queue, *self._late):
            (moved if live is None or timer[2].live is live else kept).append(timer)
        moved_on = [(at - by_ns, order, talk, turn, due - by_ns) for at, order, talk, turn, due in moved]
        self.queue, self._late = [], []
        for timer in (*kept, *moved_on):
            late = self.deadline_ns is not None and timer[0] - self._latency_ns >= self.deadline_ns
            (self._late if late else self.queue).append(timer)
        heapify(self.queue)
        return len(moved)
