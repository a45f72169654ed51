"""From requests that name what they wait for to the conversations of a play."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from engine.traces.tree import Conversation, Edge, Play, Relation, Trigger, Turn


@dataclass(frozen=True, slots=True)
class Wait:
    """What a request waits for. ``relation`` None: told by where both stand."""

    request_id: str
    trigger: Trigger
    delay_ns: int
    relation: Relation | None


@dataclass(eq=False, slots=True)
class Node:
    """A request; ``number`` is its row's. ``arrival_ns`` is when it came, where it waits for nothing and that is known.

    ``conversation`` and ``turn`` say where it stands in its play, once that is known.
    """

    number: int
    request_id: str
    session: str
    tokens: int
    output: int
    ids: Sequence[int]
    waits: list[Wait] = field(default_factory=list)
    not_before_ns: int | None = None
    api_ns: int | None = None
    arrival_ns: int | None = None
    conversation: str = ""
    turn: int = -1


class Ring(Exception):
    """Requests wait for each other; ``node`` is one of them."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self.node = node


def together(nodes: Sequence[Node]) -> list[list[Node]]:
    """Requests that hang together by what they wait for and by their sessions, in order of first appearance."""
    head: dict[str, str] = {}

    def find(name: str) -> str:
        while head.setdefault(name, name) != name:
            head[name] = name = head[head[name]]
        return name

    for node in nodes:
        own = find(f"session {node.session}")
        for other in (f"request {node.request_id}", *(f"request {wait.request_id}" for wait in node.waits)):
            head[find(other)] = own = find(own)
    groups: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        groups[find(f"session {node.session}")].append(node)
    return list(groups.values())


def play_of(name: str, nodes: Sequence[Node]) -> Play:
    """The play that ``nodes`` are, whose ``conversation`` is set.

    The conversation of the first request that waits for nothing is the root. Every other hangs below the request that
    spawns its first one, else the first that this waits for, else the root's first.

    Raises:
        Ring: requests wait for each other.
    """
    order = _in_order(nodes)
    root, arrival_ns = order[0], min((n.arrival_ns for n in nodes if n.arrival_ns is not None), default=None)
    by_id = {node.request_id: node for node in nodes}
    conversations: dict[str, Conversation] = {}
    for node in order:
        talk = conversations.get(node.conversation)
        if talk is None:
            talk = conversations[node.conversation] = Conversation(node.conversation, [])
            if node is not root:
                anchor = next((w for w in node.waits if w.relation == "spawn"), next(iter(node.waits), None))
                above = root if anchor is None else by_id[anchor.request_id]
                parent = conversations[above.conversation]
                talk.parent, talk.after_turn, talk.depth = above.conversation, above.turn, parent.depth + 1
                parent.turns[above.turn].spawn += (node.conversation,)
        node.turn = len(talk.turns)
        talk.turns.append(_turn(node, by_id, arrival_ns))
    return Play(name, list(conversations.values()), arrival_ns)


def _turn(node: Node, by_id: dict[str, Node], arrival_ns: int | None) -> Turn:
    edges = []
    think_ns = 0
    for wait in node.waits:
        source = by_id[wait.request_id]
        here = source.conversation == node.conversation
        relation = wait.relation or ("sequence" if here else "join" if node.turn else "spawn")
        edges.append(Edge(source.conversation, source.turn, wait.trigger, wait.delay_ns, relation))
        if here and source.turn == node.turn - 1:
            think_ns = wait.delay_ns
    turn = Turn(max(1, node.output), think_ns, (), (), node.tokens, node.ids, tuple(edges))
    turn.not_before_ns = turn.start_ns = node.not_before_ns
    turn.api_ns = node.api_ns
    if node.arrival_ns is not None and arrival_ns is not None:
        turn.not_before_ns = node.arrival_ns - arrival_ns
    return turn


def _in_order(nodes: Sequence[Node]) -> list[Node]:
    """Each request after what it waits for; of those that may come next, by ``not_before_ns``, then by rows."""
    followers: dict[str, list[int]] = defaultdict(list)
    missing = [len(node.waits) for node in nodes]
    for index, node in enumerate(nodes):
        for wait in node.waits:
            followers[wait.request_id].append(index)
    due = [node.not_before_ns or 0 for node in nodes]
    ready = [(due[index], index) for index in range(len(nodes)) if not missing[index]]
    heapify(ready)
    out: list[Node] = []
    while ready:
        index = heappop(ready)[1]
        out.append(nodes[index])
        for follower in followers[nodes[index].request_id]:
            missing[follower] -= 1
            if not missing[follower]:
                heappush(ready, (due[follower], follower))
    if len(out) < len(nodes):
        raise Ring(_in_ring(nodes, set(out)))
    return out


def _in_ring(nodes: Sequence[Node], done: set[Node]) -> Node:
    by_id = {node.request_id: node for node in nodes}
    at = next(node for node in nodes if node not in done)
    seen: set[Node] = set()
    while at not in seen:  # back along requests that are not done: sooner or later one comes again
        seen.add(at)
        at = next(by_id[wait.request_id] for wait in at.waits if by_id[wait.request_id] not in done)
    return at
