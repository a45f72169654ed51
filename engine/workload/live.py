"""Plays and conversations in progress, and the requests that came of them."""

from __future__ import annotations

from engine.traces.tree import Conversation, Play
from engine.workload.content import Walk
from engine.workload.cut import Cut
from engine.workload.graph import PlayGraph


def content_number(cache_bust: str, number: int, incarnation: int, plays: int) -> int:
    """What tells the content of a play apart: plays with one number share the blocks that are equal in the trace.

    ``number`` is that of the play among the ``plays`` of its trace, ``cache_bust`` as the knob has it.
    """
    if cache_bust == "session":
        return 1 + incarnation * plays + number
    return incarnation if cache_bust == "play" else 0


def play_name(source_trace_id: str, incarnation: int) -> str:
    """``play_id`` of a play: its name in the trace, with a counter when it is played again."""
    return f"{source_trace_id}#{incarnation}" if incarnation else source_trace_id


class LivePlay:
    """A play that a lane has taken: a single conversation whose turns follow each other.

    ``number`` counts the plays of the client from 0, ``incarnation`` how often the trace was wrapped before.
    ``content`` tells the content of plays apart: those with one number share blocks. ``turns`` are there to be sent,
    ``sent`` were.
    """

    __slots__ = ("content", "incarnation", "lane", "number", "play", "sent", "turns")

    graph: PlayGraph | None = None
    cut: Cut | None = None

    def __init__(self, play: Play, lane: int, incarnation: int, content: int = 0) -> None:
        self.play = play
        self.lane = lane
        self.incarnation = incarnation
        self.content = content
        self.number = -1
        self.sent = 0
        conversations = play.conversations
        self.turns = (
            len(conversations[0].turns) if len(conversations) == 1 else sum([len(c.turns) for c in conversations])
        )

    @property
    def begun(self) -> bool:
        """Whether anything of it was sent."""
        return self.sent > 0 or (self.cut is not None and len(self.cut.primers) > 0)


class LiveTree(LivePlay):
    """A play with a graph of what waits for what, whole or from a cut on.

    It began at ``begin_ns``; ``active`` turns are due or in flight, ``in_flight`` the latter. By node: ``waits`` counts
    the edges that did not fire, ``due_ns`` is the latest due time of those that did, ``index`` the request (-1: none),
    and ``held`` has the turns that wait for the end of a request that they continue, with when they were due.
    """

    __slots__ = ("active", "begin_ns", "cut", "due_ns", "graph", "held", "in_flight", "index", "talks", "waits")

    graph: PlayGraph

    def __init__(
        self, play: Play, lane: int, incarnation: int, content: int, graph: PlayGraph, cut: Cut | None = None
    ) -> None:
        super().__init__(play, lane, incarnation, content)
        self.graph = graph
        self.cut = cut
        self.begin_ns = self.active = self.in_flight = 0
        self.talks: list[LiveConversation | None] = [None] * len(play.conversations)
        self.waits = list(graph.waits if cut is None else cut.waits)
        self.due_ns: list[int] = []
        self.index = [-1] * len(graph.turn)
        self.held: dict[int, list[tuple[int, int]]] = {}
        if cut is not None:
            self.turns = cut.retained

    def begin(self, now_ns: int) -> list[int]:
        """Begin at this time, or go on from the cut; returns the nodes that are due without waiting for another."""
        graph, cut = self.graph, self.cut
        if cut is None:
            self.begin_ns = now_ns
            self.due_ns = [now_ns + delay for delay in graph.after_begin]
            return [node for node, waits in enumerate(self.waits) if not waits]
        self.begin_ns = now_ns - graph.scaled(cut.at_ns)
        self.due_ns = [now_ns + delay for delay in cut.due_ns]
        return [node for node, waits in enumerate(self.waits) if not waits and not cut.history[node]]


class LiveConversation:
    """A conversation in progress.

    ``spawned_by`` is the index of the request that it was spawned from, -1 for a root. ``first`` is the node of its
    first turn; in a play without a graph it ends before the turn ``stop``.
    """

    __slots__ = ("conversation", "first", "live", "parent", "spawned_by", "stop", "walk")

    def __init__(
        self,
        live: LivePlay,
        conversation: Conversation,
        walk: Walk,
        parent: LiveConversation | None,
        spawned_by: int,
        first: int = 0,
    ) -> None:
        self.live = live
        self.conversation = conversation
        self.walk = walk
        self.parent = parent
        self.spawned_by = spawned_by
        self.first = first
        self.stop = len(conversation.turns)


class Sent:
    """Every request that reached the engine, in that order: one column per fact, one row per request index.

    ``end_ns`` is -1 while the response has not ended; ``ok`` is False for what was canceled.
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
