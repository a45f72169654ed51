"""Makes the plays and conversations that a client plays out of those of the trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import GapscopeError
from engine.traces.tree import Trace
from engine.workload.content import BlockKeys, Walk
from engine.workload.cut import Cut, cut_by_span, cut_by_turns
from engine.workload.draws import uniform
from engine.workload.graph import PlayGraph, follows_itself, recorded_starts
from engine.workload.idle import gap_cap_ns
from engine.workload.live import LiveConversation, LivePlay, LiveTree, content_number


class PlayMaker:
    """What is compiled for a play is kept for the next time that it is played.

    ``knobs`` are complete. With ``always_trees`` every play has a graph, also one that could do without.

    Raises:
        GapscopeError: the knobs need recorded starts that the trace does not have.
    """

    def __init__(self, trace: Trace, knobs: Mapping[str, Any], keys: BlockKeys, always_trees: bool) -> None:
        self._trace = trace
        self._knobs = knobs
        self._keys = keys
        self._think_scale = float(knobs["think_scale"])
        self._gap_cap_ns = gap_cap_ns(knobs)
        self._cache_bust = str(knobs["cache_bust"])
        self._cuts = "" if knobs["cut"] == "none" else str(knobs["cut"])
        every = always_trees or self._gap_cap_ns > 0
        self._branched = {n for n, play in enumerate(trace.plays) if every or not follows_itself(play)}
        self._graphs: dict[int, PlayGraph] = {}  # by number of the play
        self._walks: dict[tuple[int, int, int], Walk] = {}  # of single requests
        if self._gap_cap_ns or self._cuts == "span":
            self._check_starts()

    def play(self, number: int, lane: int, incarnation: int, first: bool) -> LivePlay:
        """A play of the trace; the ``first`` of a lane is cut where trajectories are."""
        play = self._trace.plays[number]
        content = self._content(number, incarnation) if incarnation or self._cache_bust == "session" else 0
        cut = self._cut(number, lane) if first and self._cuts else None
        if cut is None and number not in self._branched:
            return LivePlay(play, lane, incarnation, content)
        return LiveTree(play, lane, incarnation, content, self._graph(number), cut)

    def single(self, number: int, at: int, turn: int, lane: int, incarnation: int) -> LiveConversation:
        """A play of one turn only: turn ``turn`` of conversation ``at``, with its whole prompt."""
        live = LivePlay(self._trace.plays[number], lane, incarnation, self._content(number, incarnation))
        live.turns = 1
        walk = self._single_walk(number, at, live.content)
        talk = LiveConversation(live, live.play.conversations[at], walk, None, -1)
        talk.stop = turn + 1
        return talk

    def conversation(self, live: LivePlay) -> LiveConversation:
        """The only conversation of a play without a graph."""
        conversation = live.play.conversations[0]
        return LiveConversation(live, conversation, self._keys.walk(conversation, None, live.content), None, -1)

    def talk(self, live: LiveTree, number: int) -> LiveConversation:
        """A conversation of a tree in progress, made after those that it was spawned from."""
        talk = live.talks[number]
        if talk is None:
            conversation, above = live.play.conversations[number], live.graph.parent[number]
            parent = base = None
            if above >= 0:
                parent = self.talk(live, above)
                if conversation.mode == "fork" and conversation.after_turn is not None:
                    base = parent.walk.marks.get(conversation.after_turn)
            walk = self._keys.walk(conversation, base, live.content)
            talk = LiveConversation(live, conversation, walk, parent, -1, live.graph.first[number])
            live.talks[number] = talk
        return talk

    def think_ns(self, talk: LiveConversation, turn: int) -> int:
        """What passes before a turn of a play without a graph."""
        think = talk.conversation.turns[turn].think_ns
        return think if self._think_scale == 1.0 else round(think * self._think_scale)

    def _graph(self, number: int) -> PlayGraph:
        graph = self._graphs.get(number)
        if graph is None:
            graph = PlayGraph(self._trace.plays[number], self._think_scale, self._gap_cap_ns)
            self._graphs[number] = graph
        return graph

    def _cut(self, number: int, lane: int) -> Cut:
        low, high = self._knobs["cut_from"], self._knobs["cut_to"]
        name = self._trace.plays[number].source_trace_id
        share = low + (high - low) * uniform(self._knobs["client_seed"], "cut", name, lane, 0)
        return (cut_by_span if self._cuts == "span" else cut_by_turns)(self._graph(number), share)

    def _content(self, number: int, incarnation: int) -> int:
        return content_number(self._cache_bust, number, incarnation, len(self._trace.plays))

    def _single_walk(self, number: int, at: int, content: int) -> Walk:
        walk = self._walks.get((number, at, content))
        if walk is None:
            conversations = self._trace.plays[number].conversations
            conversation, base = conversations[at], None
            if conversation.mode == "fork" and conversation.parent is not None and conversation.after_turn is not None:
                names = [c.conversation_id for c in conversations]
                above = self._single_walk(number, names.index(conversation.parent), content)
                base = above.marks.get(conversation.after_turn)
            walk = self._walks[number, at, content] = self._keys.walk(conversation, base, content)
        return walk

    def _check_starts(self) -> None:
        without = sum(not recorded_starts(play) for play in self._trace.plays)
        if without:
            asked = "cut=span" if self._cuts == "span" else "idle_cap=per_trace"
            other = "cut=turns" if self._cuts == "span" else "idle_cap=system"
            raise GapscopeError(
                f"Knob {asked}: {without} of the {len(self._trace.plays)} plays of {self._trace.name} do not record "
                f"when each request started; expected a trace with start times, or {other}."
            )
