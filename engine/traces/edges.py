"""What each turn of a play waits for, written out edge by edge, and an order in which nothing comes before that."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from engine.traces.tree import Conversation, Edge, Play

Place = tuple[str, int]
"""A turn of a play: its conversation's id and its number there."""


def edges_of(play: Play) -> dict[Place, tuple[Edge, ...]]:
    """The edges of every turn of a play whose conversations form a tree, in the order in which the play lists them.

    Where a turn has none of its own, the implicit rule is written out: the end of the previous turn and of all that
    this one spawned, or for the first turn of a child the end of the turn that spawned it, and the think time.
    """
    by_id = {c.conversation_id: c for c in play.conversations}
    ends = _ends(play, by_id)
    out: dict[Place, tuple[Edge, ...]] = {}
    for conversation in play.conversations:
        name, parent, after = conversation.conversation_id, conversation.parent, conversation.after_turn
        for number, turn in enumerate(conversation.turns):
            if turn.edges is not None:
                out[name, number] = turn.edges
            elif number:
                joins = (end for child in conversation.turns[number - 1].spawn for end in ends[child])
                out[name, number] = (
                    Edge(name, number - 1, "completion", turn.think_ns, "sequence"),
                    *(Edge(*end, "completion", turn.think_ns, "join") for end in joins),
                )
            elif parent is not None and after is not None:
                out[name, number] = (Edge(parent, after, "completion", turn.think_ns, "spawn"),)
            else:
                out[name, number] = ()
    return out


def in_order(play: Play, edges: Mapping[Place, tuple[Edge, ...]]) -> list[Place]:
    """The turns of a play, each after all that it waits for; those that may come next in order of recorded start.

    Turns that wait for each other in a ring, and what waits for them, are left out.
    """
    starts = {
        (c.conversation_id, number): turn.start_ns or 0
        for c in play.conversations
        for number, turn in enumerate(c.turns)
    }
    listed = {place: index for index, place in enumerate(starts)}
    missing = Counter({place: len(edges[place]) for place in listed})
    waiting: dict[Place, list[Place]] = defaultdict(list)
    for place in listed:
        for edge in edges[place]:
            waiting[edge.conversation_id, edge.turn].append(place)
    ready = [(starts[place], listed[place], place) for place in listed if not missing[place]]
    heapify(ready)
    out: list[Place] = []
    while ready:
        place = heappop(ready)[2]
        out.append(place)
        for follower in waiting[place]:
            missing[follower] -= 1
            if not missing[follower]:
                heappush(ready, (starts[follower], listed[follower], follower))
    return out


def _ends(play: Play, by_id: Mapping[str, Conversation]) -> dict[str, list[Place]]:
    """The turns at whose end each conversation is over, with what its last turn spawned."""
    down = [play.conversations[0]]
    for conversation in down:  # grows: parents come before their children
        down += [by_id[child] for turn in conversation.turns for child in turn.spawn]
    ends: dict[str, list[Place]] = {}
    for conversation in reversed(down):
        last = len(conversation.turns) - 1
        below = [end for child in conversation.turns[last].spawn for end in ends[child]]
        ends[conversation.conversation_id] = below or [(conversation.conversation_id, last)]
    return ends
