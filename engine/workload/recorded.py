"""Open-loop client: sends what a recorded run sent, when it sent it, and gives up on what that run gave up on.

The recording says who was sent when and how much it put out; the trace says what each request holds. Nothing that
finishes here changes what is sent next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop
from typing import Any

from engine.serving.contract import Finished, ServedRequest
from engine.traces.tree import Conversation, Trace
from engine.workload.client import Client
from engine.workload.content import BlockKeys
from engine.workload.live import LiveConversation, LivePlay, content_number

AS_RECORDED: Mapping[str, Any] = {"cut": "none", "prime": False, "warmup_requests": 0, "idle_cap": "none"}
"""Settings (``engine.knobs``) that have no use where requests are sent when a recording says."""


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """A request as its run recorded it; None where the run does not say.

    ``canceled_ns`` is when its client gave it up, None for one that succeeded. ``output_tokens`` is what the engine
    would put out if nobody gave it up.
    """

    request_id: str
    source_trace_id: str | None
    conversation_id: str | None
    turn_index: int | None
    play_id: str | None
    lane: int | None
    scheduled_ns: int | None
    dispatched_ns: int
    canceled_ns: int | None
    input_tokens: int
    output_tokens: int | None
    cached_tokens: int | None


class RecordedLoad:
    """The requests of a run as turns of the trace, in the order in which they were sent.

    Index i of every list is the request with index i of any replay of this load. ``left`` counts in words the
    requests of the recording that the trace cannot play.

    Args:
        turns: the recorded requests, in the order in which they were sent.
        trace: the workload that they were taken from.
        keys: names the blocks of the trace.
        cache_bust: which plays share content, as the knob has it.
    """

    def __init__(self, turns: Iterable[RecordedTurn], trace: Trace, keys: BlockKeys, cache_bust: str) -> None:
        self.trace = trace
        self.keys = keys
        self.turns: list[RecordedTurn] = []
        self.conversations: list[LiveConversation] = []
        self.plays: list[LivePlay] = []
        self.index: dict[str, int] = {}  # by request id
        self.left: Counter[str] = Counter()
        self._cache_bust = cache_bust
        self._sources = {play.source_trace_id: play for play in trace.plays}
        self._numbers = {play.source_trace_id: number for number, play in enumerate(trace.plays)}
        self._live: dict[str, LivePlay] = {}
        self._incarnations: Counter[str] = Counter()
        self._talks: dict[tuple[str, str], LiveConversation] = {}
        self._sent: dict[tuple[str, str, int], int] = {}
        for turn in turns:
            self._take(turn)

    def __len__(self) -> int:
        return len(self.turns)

    def _take(self, turn: RecordedTurn) -> None:
        play_id, name, number = turn.play_id or turn.source_trace_id, turn.conversation_id, turn.turn_index
        source = self._sources.get(turn.source_trace_id or "")
        known = {} if source is None else {c.conversation_id: c for c in source.conversations}
        conversation = known.get(name or "")
        if conversation is None or number is None or not 0 <= number < len(conversation.turns):
            self.left["requests that the trace does not have"] += 1
            return
        assert play_id is not None
        assert name is not None
        if (play_id, name, number) in self._sent:
            self.left["requests that repeat a turn of their play"] += 1
            return
        live = self._talk(self._play(turn, play_id), play_id, conversation)
        if live.walk.prompt_tokens[number] != turn.input_tokens:
            self.left["requests whose prompt is not as long as in the trace"] += 1
            return
        index = self._sent[play_id, name, number] = len(self.turns)
        if not number and conversation.parent is not None and conversation.after_turn is not None:
            live.spawned_by = self._sent.get((play_id, conversation.parent, conversation.after_turn), -1)
        if not live.live.sent:
            live.live.number = len(self.plays)
            self.plays.append(live.live)
        live.live.sent += 1
        self.index[turn.request_id] = index
        self.turns.append(turn)
        self.conversations.append(live)

    def _play(self, turn: RecordedTurn, play_id: str) -> LivePlay:
        """The play that a request belongs to; where no lane was recorded, each has one of its own."""
        live = self._live.get(play_id)
        if live is None:
            source = str(turn.source_trace_id)
            name, _, counter = play_id.rpartition("#")
            again = int(counter) if name == source and counter.isdecimal() else self._incarnations[source]
            self._incarnations[source] = again + 1
            lane = len(self._live) if turn.lane is None else turn.lane
            content = content_number(self._cache_bust, self._numbers[source], again, len(self.trace.plays))
            live = self._live[play_id] = LivePlay(self._sources[source], lane, again, content)
        return live

    def _talk(self, live: LivePlay, play_id: str, conversation: Conversation) -> LiveConversation:
        """The conversation as it is played, after those that it was forked from."""
        talk = self._talks.get((play_id, conversation.conversation_id))
        if talk is None:
            parent = base = None
            if conversation.parent is not None:
                above = {c.conversation_id: c for c in live.play.conversations}[conversation.parent]
                parent = self._talk(live, play_id, above)
                if conversation.mode == "fork" and conversation.after_turn is not None:
                    base = parent.walk.marks.get(conversation.after_turn)
            walk = self.keys.walk(conversation, base, live.content)
            talk = LiveConversation(live, conversation, walk, parent, -1)
            self._talks[play_id, conversation.conversation_id] = talk
        return talk


class RecordedClient(Client):
    """The client of a replay that is fed by a recording.

    ``knobs`` give the phases and the latencies on the way to the engine and back, which stay modelled. With
    ``forced``, each request says how many tokens it reuses, as far as that was recorded.
    """

    def __init__(self, load: RecordedLoad, knobs: Mapping[str, Any], forced: bool = False) -> None:
        super().__init__(load.trace, {**knobs, **AS_RECORDED, "arrivals": "lanes"}, load.keys)
        self.keys = load.keys
        self.plays = load.plays
        self.start_ns = min([self.start_ns, *(turn.dispatched_ns for turn in load.turns[:1])])
        self._load = load
        self._forced = forced
        self._gone: list[tuple[int, int]] = []  # when the engine learns of each cancel, and whose
        for index, turn in enumerate(load.turns):
            if turn.canceled_ns is not None:
                self._gone.append((max(turn.canceled_ns, turn.dispatched_ns) + self._request_latency_ns, index))
        heapify(self._gone)

    @property
    def next_ns(self) -> int | None:
        """When the next request or cancel reaches the engine; None: never."""
        while self._gone and self._gone[0][1] < len(self.sent) and self._gone[0][1] not in self._open:
            heappop(self._gone)
        times = [self._gone[0][0]] if self._gone else []
        if len(self.sent) < len(self._load):
            times.append(self._load.turns[len(self.sent)].dispatched_ns + self._request_latency_ns)
        return min(times, default=None)

    def due(self, now_ns: int) -> list[ServedRequest]:
        """What reached the engine by ``now_ns``, in order of arrival."""
        out: list[ServedRequest] = []
        sent, turns = self.sent, self._load.turns
        while len(sent) < len(turns) and turns[len(sent)].dispatched_ns + self._request_latency_ns <= now_ns:
            index, turn = len(sent), turns[len(sent)]
            live, number = self._load.conversations[index], turn.turn_index
            assert number is not None
            sent.conversation.append(live)
            sent.turn.append(number)
            sent.scheduled_ns.append(turn.dispatched_ns if turn.scheduled_ns is None else turn.scheduled_ns)
            sent.dispatched_ns.append(turn.dispatched_ns)
            sent.end_ns.append(-1)
            sent.ok.append(False)
            self._open[index] = live
            walk, asked = live.walk, live.conversation.turns[number].output_tokens
            output = max(1, asked if turn.output_tokens is None else turn.output_tokens)
            cached = min(turn.cached_tokens, turn.input_tokens - 1) if turn.cached_tokens is not None else None
            forced = cached if self._forced else None
            session, keys = live.live.number, walk.keys[number]
            out.append(ServedRequest(index, turn.input_tokens, output, keys, forced, session, live.spawned_by))
        return out

    def aborts(self, now_ns: int) -> list[int]:
        """Requests whose cancel the engine knows of by ``now_ns``, in the order of their cancels."""
        gone: list[int] = []
        while self._gone and self._gone[0][0] <= now_ns:
            index = heappop(self._gone)[1]
            if self._open.pop(index, None) is not None:
                self.sent.end_ns[index] = self._canceled_ns(index)
                gone.append(index)
        return gone

    def finished(self, done: Finished) -> None:
        """Note the end of a request; nothing follows from it."""
        del self._open[done.index]
        end = self.seen_ns(done)
        canceled = self._load.turns[done.index].canceled_ns
        self.sent.ok[done.index] = canceled is None or end <= canceled
        self.sent.end_ns[done.index] = end if self.sent.ok[done.index] else self._canceled_ns(done.index)

    def _canceled_ns(self, index: int) -> int:
        turn = self._load.turns[index]
        assert turn.canceled_ns is not None
        return max(turn.canceled_ns, turn.dispatched_ns)
