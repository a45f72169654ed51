"""Recorded requests of sessions and their children, as plays.

* The requests of a session are one conversation, in the order in which they started.
* A child session starts after the request of its parent that launched it: the one that a tool record names, else the
  last that had started by then. Where that request was still running, the child waits for its dispatch.
* The parent joins a child, unless it ran in the background: the request that a tool record names, else the parent's
  first that started after the child's last response, waits for that. Without such a request nothing does.
* A request is due as long after the last of what it waits for as in the recording. One that started while the request
  before it was running follows that one's dispatch.
* A session without a parent, or whose parent is not in the trace, is a play.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.errors import GapscopeError
from engine.traces.tree import Conversation, Edge, Play, Relation, Trigger, Turn

Waits = dict[tuple[str, int], list[tuple[Relation, "Request", str, int]]]


@dataclass(slots=True)
class Request:
    """One recorded request."""

    name: str
    session: str
    start_ns: int
    end_ns: int
    prompt_tokens: int
    output_tokens: int
    ids: array[int]


@dataclass(slots=True)
class Launch:
    """What a tool record says of a child session: who launched it, and who took its result."""

    child: str
    source: str
    consumer: str | None
    background: bool


def plays_of(
    requests: list[Request], parents: Mapping[str, str], launches: Iterable[Launch], notes: dict[str, str], where: str
) -> list[Play]:
    """The plays of a trace in order of arrival; ``notes`` gets what had to be inferred.

    ``parents`` has the parent of each child session.

    Raises:
        GapscopeError: sessions that are each other's ancestors.
    """
    sessions: dict[str, list[Request]] = defaultdict(list)
    for request in sorted(requests, key=lambda r: (r.start_ns, r.end_ns, r.name)):
        sessions[request.session].append(request)
    begin = min(request.start_ns for request in requests)
    lost = [s for s in sessions if s in parents and parents[s] not in sessions]
    if lost:
        notes["sessions without their parent"] = f"{len(lost)}, each a play of its own"
    roots = {session: _root(session, parents, sessions, where) for session in sessions}
    members: dict[str, list[str]] = defaultdict(list)
    for session in sessions:  # in order of their first requests
        members[roots[session]].append(session)
    by_name = {request.name: (request.session, at) for s in sessions.values() for at, request in enumerate(s)}
    told = {launch.child: launch for launch in launches}
    inferred = 0
    plays = []
    for root, names in members.items():
        names = _parents_first(root, names, parents)
        play = _Builder(sessions, names, begin)
        for child in names[1:]:
            inferred += play.hang(child, parents[child], told.get(child), by_name)
        plays.append(play.finish())
    if inferred:
        notes["child sessions placed by time"] = f"{inferred}: no tool record says which request launched them"
    return plays


class _Builder:
    """One play from its sessions, the root first and parents before children."""

    def __init__(self, sessions: Mapping[str, list[Request]], names: list[str], begin_ns: int) -> None:
        self._requests = {name: sessions[name] for name in names}
        self._begin_ns = begin_ns
        self._talks = {name: Conversation(name, [_turn(request) for request in sessions[name]]) for name in names}
        self._waits: Waits = defaultdict(list)
        for name in names:
            for at, request in enumerate(sessions[name][:-1], 1):
                self._waits[name, at].append(("sequence", request, name, at - 1))

    def hang(self, child: str, parent: str, told: Launch | None, by_name: Mapping[str, tuple[str, int]]) -> bool:
        """Put a child session into the tree; True where that had to be inferred from the times."""
        above, own = self._requests[parent], self._requests[child]
        source = by_name.get(told.source) if told else None
        known = source is not None and source[0] == parent and above[source[1]].start_ns <= own[0].start_ns
        at = source[1] if source is not None and known else _last(above, own[0].start_ns)
        talk, turn = self._talks[child], max(at, 0)
        talk.parent, talk.after_turn, talk.depth = parent, turn, self._talks[parent].depth + 1
        self._talks[parent].turns[turn].spawn += (child,)
        if at >= 0:
            self._waits[child, 0].append(("spawn", above[at], parent, at))
        if told is None or not told.background:
            end = max(range(len(own)), key=lambda n: own[n].end_ns)
            consumer = by_name.get(told.consumer) if told and told.consumer else None
            if consumer is not None and (consumer[0] != parent or consumer[1] <= turn):
                consumer = None
            joins = (n for n in range(turn + 1, len(above)) if above[n].start_ns >= own[end].end_ns)
            join = next(joins, None) if consumer is None else consumer[1]
            if join is not None and above[join].start_ns >= own[end].end_ns:
                self._waits[parent, join].append(("join", own[end], child, end))
        return not known

    def finish(self) -> Play:
        root = next(iter(self._talks))
        first_ns = min(requests[0].start_ns for requests in self._requests.values())
        for name, talk in self._talks.items():
            for number, turn in enumerate(talk.turns):
                request = self._requests[name][number]
                turn.start_ns = request.start_ns - first_ns
                turn.api_ns = request.end_ns - request.start_ns
                turn.edges = _edges(request, self._waits.get((name, number), []))
                if not turn.edges and turn.start_ns:
                    turn.not_before_ns = turn.start_ns
                turn.think_ns = next((e.delay_ns for e in turn.edges if e.trigger == "completion"), 0)
        if len(self._talks) == 1 and all(
            e.trigger == "completion" for t in self._talks[root].turns for e in t.edges or ()
        ):
            for turn in self._talks[root].turns:
                turn.edges = None  # each waits for the one before it, which needs no edges
        return Play(root, list(self._talks.values()), first_ns - self._begin_ns)


def _edges(request: Request, waits: list[tuple[Relation, Request, str, int]]) -> tuple[Edge, ...]:
    """Due as long after the last end as recorded; after the dispatch of what was running."""
    ends = [before.end_ns for _, before, _, _ in waits if before.end_ns <= request.start_ns]
    rest = request.start_ns - max(ends, default=0)
    out = []
    for relation, before, session, at in waits:
        trigger: Trigger = "completion" if before.end_ns <= request.start_ns else "dispatch"
        delay = rest if trigger == "completion" else request.start_ns - before.start_ns
        out.append(Edge(session, at, trigger, delay, relation))
    return tuple(out)


def _turn(request: Request) -> Turn:
    return Turn(request.output_tokens, 0, prompt_tokens=request.prompt_tokens, hash_ids=request.ids)


def _last(requests: list[Request], by_ns: int) -> int:
    """The last request that had started by then; -1 for none."""
    return sum(request.start_ns <= by_ns for request in requests) - 1


def _root(session: str, parents: Mapping[str, str], sessions: Mapping[str, list[Request]], where: str) -> str:
    trail = [session]
    while (parent := parents.get(trail[-1])) is not None and parent in sessions:
        if parent in trail:
            ring = " -> ".join([*trail[trail.index(parent) :], parent])
            raise GapscopeError(f"{where}: sessions are each other's parents: {ring}; expected a tree.")
        trail.append(parent)
    return trail[-1]


def _parents_first(root: str, names: list[str], parents: Mapping[str, str]) -> list[str]:
    children: dict[str, list[str]] = defaultdict(list)
    for name in names:
        if name != root:
            children[parents[name]].append(name)
    out = [root]
    for name in out:  # grows
        out += children[name]
    return out
