"""Plays a workload against a server in real time.

What is sent when is decided by the client of the replay (:mod:`engine.workload`), on the machine's monotonic clock in
place of a simulated one: lanes, think times, joins, cuts, phases and the end are the same rules because they are the
same code.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.recording.client.answer import Answer
from engine.recording.client.prompts import Prompt
from engine.serving.contract import Finished, ServedRequest
from engine.workload.client import Client
from engine.workload.live import LiveConversation, LivePlay

LONGEST_SLEEP_S = 0.25
UNANSWERED = 32
"""So many requests in a row without any response: the server is gone, and the rest of the trace would only burn."""


@dataclass(slots=True)
class Exchange:
    """A request that was sent and what came of it. Times are ns from the start of the load."""

    index: int
    request_id: str
    talk: LiveConversation
    turn: int
    asked_tokens: int
    scheduled_ns: int
    prompt: Prompt
    answer: Answer
    primed: tuple[str, int] | None = None


class Prompts(Protocol):
    """Makes the prompts of plays in progress."""

    def of(self, talk: LiveConversation, turn: int) -> Prompt:
        """The prompt of a turn."""

    def ended(self, talk: LiveConversation, turn: int, answer: Answer) -> None:
        """A turn was answered."""

    def over(self, live: LivePlay) -> None:
        """Nothing more is sent of a play."""


Sender = Callable[[str, Prompt, int], Awaitable[Answer]]
"""Sends a request by its id, prompt and output tokens asked for; answers canceled when its task is."""


class Load:
    """One load on one server.

    ``started_ns`` is when it began on the monotonic clock. ``stop`` ends it early: what is in flight is canceled.
    ``server_gone`` and ``problem`` are why it ended by itself; a problem lies in this program or its disk.

    Args:
        client: decides what is sent when.
        prompts: makes what is sent.
        send: sends it.
        name: request ids are this and a number.
        keep: is given each exchange once it is over; nothing of it is held here afterwards.
        progress: is told the time on the client's clock, and how many requests are in flight and over.
    """

    def __init__(
        self,
        client: Client,
        prompts: Prompts,
        send: Sender,
        name: str,
        keep: Callable[[Exchange], None],
        progress: Callable[[int, int, int], None] | None = None,
    ) -> None:
        self.problem: Exception | None = None
        self.over = 0
        self.started_ns = 0
        self.canceled_ns: int | None = None
        self.ended_ns: int | None = None
        self.stopped = self.server_gone = False
        self._client = client
        self._prompts = prompts
        self._send = send
        self._name = name
        self._keep = keep
        self._progress = progress
        self._origin_ns = client.start_ns
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._plays: dict[int, LivePlay] = {}  # by lane
        self._given_up: set[int] = set()  # by the client, at its time to cancel
        self._unanswered = 0
        self._wake = asyncio.Event()

    async def play(self) -> None:
        """Play to the end: the trace or the phases are over, :meth:`stop` was called, or there is a ``problem``."""
        self.started_ns = time.monotonic_ns()
        try:
            await self._play()
        except Exception as problem:
            self._broke(problem)
        for index in list(self._tasks):
            self._cancel(index)
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self.ended_ns = time.monotonic_ns()

    async def _play(self) -> None:
        client = self._client
        while not self.stopped:
            now = self._now()
            for request in client.due(now):
                self._start(request)
            self._give_up(client.aborts(now))
            upcoming = client.next_ns
            if upcoming is None and not self._tasks:
                if client.exhausted_ns is not None or client.deadline_ns is None or now >= client.deadline_ns:
                    break
                upcoming = client.deadline_ns  # every lane thinks past it: the rest of the window is idle, not over
            if self._progress is not None:
                self._progress(now, len(self._tasks), self.over)
            await self._sleep(upcoming)

    def stop(self) -> None:
        """End it now."""
        self.stopped = True
        self._wake.set()

    def _now(self) -> int:
        return self._client_ns(time.monotonic_ns())

    def _client_ns(self, monotonic_ns: int) -> int:
        """A time on the client's clock, on which the profile starts at 0 (or the primers do)."""
        return monotonic_ns - self.started_ns + self._origin_ns

    async def _sleep(self, until_ns: int | None) -> None:
        """Until then, or until a response ended."""
        self._wake.clear()
        if self.stopped:
            return
        most = LONGEST_SLEEP_S if until_ns is None else min(LONGEST_SLEEP_S, (until_ns - self._now()) / 1e9)
        if most > 0:
            try:
                async with asyncio.timeout(most):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _start(self, request: ServedRequest) -> None:
        client, index = self._client, request.index
        talk, turn = client.sent.conversation[index], client.sent.turn[index]
        before = self._plays.get(talk.live.lane)
        if before is not None and before is not talk.live:
            self._prompts.over(before)
        self._plays[talk.live.lane] = talk.live
        exchange = Exchange(
            index,
            f"{self._name}-{index + 1:05d}",
            talk,
            turn,
            request.output_tokens,
            client.sent.scheduled_ns[index] - self._origin_ns,
            self._prompts.of(talk, turn),
            Answer(),
            client.primed[index] if index < len(client.primed) else None,
        )
        task = asyncio.get_running_loop().create_task(self._exchange(exchange))
        task.add_done_callback(lambda _: self._done(index))
        self._tasks[index] = task

    def _done(self, index: int) -> None:
        # One that is canceled before it began never ran, so it is taken out here.
        self._tasks.pop(index, None)
        self._wake.set()

    def _broke(self, problem: Exception) -> None:
        """End it for this reason; the first one counts."""
        self.problem = self.problem or problem
        self.stop()

    def _give_up(self, indices: Sequence[int]) -> None:
        self._given_up.update(indices)
        for index in indices:
            self._cancel(index)

    def _cancel(self, index: int) -> None:
        task = self._tasks.get(index)
        if task is not None and task.cancel():
            self.canceled_ns = self.canceled_ns or time.monotonic_ns()

    async def _exchange(self, exchange: Exchange) -> None:
        exchange.answer = await self._send(exchange.request_id, exchange.prompt, exchange.asked_tokens)
        try:
            try:
                self._follow(exchange, exchange.answer)
            finally:
                if exchange.answer.dispatched_ns:
                    self._keep(exchange)
            self._count(exchange)
        except Exception as problem:
            self._broke(problem)

    def _count(self, exchange: Exchange) -> None:
        self.over += 1
        if exchange.answer.status != "canceled":
            self._unanswered = 0 if exchange.answer.headers_ns is not None else self._unanswered + 1
        if self._unanswered >= UNANSWERED:
            self.server_gone = True
            self.stop()

    def _follow(self, exchange: Exchange, answer: Answer) -> None:
        """Let the client decide what comes next.

        By the clock, a response that ended past the cancel was canceled, and one that ended before was not, in
        whatever order the event loop gets to the two. The client forgets what it gave up, so it is not told of that.
        """
        client, index = self._client, exchange.index
        if answer.status == "canceled":
            return
        if exchange.primed is None:
            self._prompts.ended(exchange.talk, exchange.turn, answer)
        end = self._client_ns(answer.end_ns)
        late = client.cancel_ns is not None and end > client.cancel_ns
        if late:
            answer.status, answer.error = "canceled", None
        if index in self._given_up:
            if not late:
                client.sent.end_ns[index], client.sent.ok[index] = end, answer.status == "ok"
        elif late or answer.status == "ok":
            client.finished(Finished(index, -1, end, end, 0))
        else:
            client.failed(index, end)
