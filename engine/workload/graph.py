"""What waits for what in a play, compiled once for every time that it is played."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from engine.traces.edges import edges_of
from engine.traces.tree import Conversation, Edge, Play, Turn

NOBODY = -1


class PlayGraph:
    """The turns of a play as numbered nodes, and the edges between them as lists.

    Node ``first[c] + k`` is turn k of conversation c. ``waits[n]`` edges lead to node n; ``on_completion[n]`` and
    ``on_dispatch[n]`` are the nodes that wait for it, each with the delay from then on. A node that nothing leads to
    is due ``after_begin[n]`` after the play began. ``not_before[n]`` is NOBODY where there is no such limit.
    ``extends[n]`` is the node whose context the prompt of n continues, where no edge makes n wait for its end, else
    NOBODY. These times are ns with the factor on think times in them. ``start_ns[n]`` is the recorded start, long gaps
    shortened; None for all nodes unless every turn has one.

    Args:
        play: a play that ``engine.traces.check_trace`` accepts.
        think_scale: factor on recorded delays.
        gap_cap_ns: gaps between recorded starts that are longer count as long as this; 0: as they are. Every turn of
            the play has a recorded start then.
    """

    __slots__ = (
        "after_begin",
        "conversation",
        "extends",
        "first",
        "not_before",
        "on_completion",
        "on_dispatch",
        "parent",
        "play",
        "scale",
        "start_ns",
        "turn",
        "waits",
    )

    def __init__(self, play: Play, think_scale: float = 1.0, gap_cap_ns: int = 0) -> None:
        self.play = play
        self.scale = think_scale
        self.conversation: list[int] = []  # by node
        self.turn: list[int] = []
        self.first: list[int] = []  # by conversation
        for number, conversation in enumerate(play.conversations):
            self.first.append(len(self.turn))
            self.turn += range(len(conversation.turns))
            self.conversation += [number] * len(conversation.turns)
        number_of = {c.conversation_id: n for n, c in enumerate(play.conversations)}
        self.parent = [NOBODY if c.parent is None else number_of[c.parent] for c in play.conversations]
        size = len(self.turn)
        self.waits = [0] * size
        self.on_completion: list[list[tuple[int, int]]] = [[] for _ in range(size)]
        self.on_dispatch: list[list[tuple[int, int]]] = [[] for _ in range(size)]
        self.after_begin = [0] * size
        self.not_before = [NOBODY] * size
        self.extends = [NOBODY] * size
        skipped = [0] * size
        self.start_ns: list[int] | None = None
        if recorded_starts(play):
            starts = [turn.start_ns or 0 for c in play.conversations for turn in c.turns]
            if gap_cap_ns:
                skipped = _skipped(starts, gap_cap_ns)
            self.start_ns = [start - less for start, less in zip(starts, skipped, strict=True)]
        for node, edges in enumerate(edges_of(play).values()):
            self._connect(node, edges, number_of, skipped)

    def turn_at(self, node: int) -> Turn:
        """The turn that a node is."""
        return self.play.conversations[self.conversation[node]].turns[self.turn[node]]

    def parents_first(self) -> list[int]:
        """Every conversation, each after the one that it was spawned from."""
        order, children = [0], self._children()
        for number in order:  # grows
            order += children[number]
        return order

    def _children(self) -> list[list[int]]:
        children: list[list[int]] = [[] for _ in self.parent]
        for number, parent in enumerate(self.parent):
            if parent != NOBODY:
                children[parent].append(number)
        return children

    def _connect(self, node: int, edges: Sequence[Edge], number_of: dict[str, int], skipped: list[int]) -> None:
        conversation, turn = self.play.conversations[self.conversation[node]], self.turn_at(node)
        for edge in edges:
            source = self.first[number_of[edge.conversation_id]] + edge.turn
            out = self.on_completion if edge.trigger == "completion" else self.on_dispatch
            saved = max(0, skipped[node] - skipped[source])
            out[source].append((node, self.scaled(max(0, edge.delay_ns - saved))))
        self.waits[node] = len(edges)
        if turn.edges is None and not edges:
            self.after_begin[node] = self.scaled(turn.think_ns)
        if turn.not_before_ns is not None:
            self.not_before[node] = self.scaled(max(0, turn.not_before_ns - skipped[node]))
        before = self._continued(node, conversation)
        if before != NOBODY and all(target != node for target, _ in self.on_completion[before]):
            self.extends[node] = before

    def _continued(self, node: int, conversation: Conversation) -> int:
        """The turn whose context the prompt of this one continues; NOBODY where it begins anew."""
        if self.turn[node]:
            return node - 1
        if conversation.mode == "fresh":
            return NOBODY
        return self.first[self.parent[self.conversation[node]]] + (conversation.after_turn or 0)

    def scaled(self, delay_ns: int) -> int:
        """A recorded time with the factor on think times."""
        return delay_ns if self.scale == 1.0 else round(delay_ns * self.scale)


def recorded_starts(play: Play) -> bool:
    """Whether every turn of the play has a recorded start."""
    return all(turn.start_ns is not None for c in play.conversations for turn in c.turns)


def follows_itself(play: Play) -> bool:
    """Whether the play is one conversation whose turns follow each other after their think times: it needs no graph."""
    if len(play.conversations) > 1:
        return False
    for turn in play.conversations[0].turns:
        if turn.edges is not None or turn.not_before_ns is not None or turn.spawn:
            return False
    return True


def _skipped(starts: list[int], cap_ns: int) -> list[int]:
    """How much earlier each node starts when no gap between one recorded start and the next is longer than the cap."""
    order = sorted(range(len(starts)), key=starts.__getitem__)
    skipped, total = [0] * len(starts), 0
    for before, node in pairwise(order):
        total += max(0, starts[node] - starts[before] - cap_ns)
        skipped[node] = total
    return skipped
