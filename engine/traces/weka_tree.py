"""From a recorded agent session to a play: whose turn each request is, and what it waited for.

The requests of one level (the session itself, or one subagent) are a *scope*. Its conversations are told by their
prompts (:mod:`engine.traces.weka_chains`); of subagents it is recorded when they were launched and whether one waited.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from engine.traces.tree import Conversation, Edge, ForkMode, Play, Turn
from engine.traces.weka_chains import EPSILON_NS, Chain, Request, chains_of

AUX_TOKENS = 16384
AUX_SHARE = 10
"""A single request is a sidecar below so many prompt tokens, or a tenth of the most that its main conversation has."""


class Malformed(Exception):
    """What is wrong with a session, in words that follow its place."""


@dataclass(eq=False, slots=True)
class Subagent:
    """An agent that a scope launched at ``start_ns``; ``duration_ns`` is None where that was not recorded.

    ``blocking``: the scope waited for it. ``where`` names it in a refusal.
    """

    order: int
    start_ns: int
    duration_ns: int | None
    agent_id: str
    blocking: bool
    inside: Scope
    where: str

    def end_ns(self) -> int:
        """When it was over."""
        return self.inside.end_ns() if self.duration_ns is None else self.start_ns + self.duration_ns


@dataclass(eq=False, slots=True)
class Scope:
    """Requests and subagents of one level, with the times of all of them from the beginning of the session on."""

    requests: list[Request] = field(default_factory=list)
    subagents: list[Subagent] = field(default_factory=list)

    def end_ns(self) -> int:
        """When the last response in it ended."""
        return max([0, *(r.end_ns for r in self.requests), *(s.inside.end_ns() for s in self.subagents)])

    def everything(self) -> list[Request]:
        """All requests, those of subagents included."""
        return [*self.requests, *(r for s in self.subagents for r in s.inside.everything())]


def play_of(session_id: str, scope: Scope) -> Play:
    """The session as a play.

    Conversations are named as AIPerf names them: the session's main one by its id, subagents ``::sa:<agent id>``, and
    what forked off either ``:fa:<n>``, or ``:aux:<n>`` for a small single request.

    Raises:
        Malformed: a subagent that nobody can have launched.
    """
    return _Lowering(session_id).play(scope)


@dataclass(eq=False, slots=True)
class _Talk:
    """A conversation whose children are not known yet; ``anchor`` is the request that spawns it."""

    name: str
    requests: list[Request]
    anchor: Request | None
    mode: ForkMode


class _Lowering:
    """Takes scope after scope; what came out is in ``_talks``, parents before their children."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._talks: list[_Talk] = []
        self._depths: dict[str, int] = {}

    def play(self, scope: Scope) -> Play:
        self._take(scope, self._session_id, "::", None)
        begin_ns = min(talk.requests[0].start_ns for talk in self._talks)
        spawned: dict[Request, list[_Talk]] = defaultdict(list)
        for talk in sorted(self._talks, key=lambda talk: talk.requests[0].when):
            if talk.anchor is not None:
                spawned[talk.anchor].append(talk)
        return Play(self._session_id, [self._conversation(talk, begin_ns, spawned) for talk in self._talks])

    def _conversation(self, talk: _Talk, begin_ns: int, spawned: dict[Request, list[_Talk]]) -> Conversation:
        turns = [
            Turn(
                output_tokens=max(1, request.output_tokens),
                think_ns=_pause(talk.requests[request.turn - 1], request) if request.turn else 0,
                spawn=tuple(child.name for child in spawned[request]),
                prompt_tokens=request.prompt_tokens,
                hash_ids=request.ids,
                edges=tuple(
                    Edge(source.conversation, source.turn, trigger, delay_ns, relation)
                    for source, trigger, delay_ns, relation in request.edges
                ),
                start_ns=request.start_ns - begin_ns,
                api_ns=request.api_ns,
            )
            for request in talk.requests
        ]
        if talk.anchor is None:
            return Conversation(talk.name, turns)
        return Conversation(
            talk.name, turns, talk.anchor.conversation, talk.anchor.turn, talk.mode, self._depths[talk.name]
        )

    def _take(self, scope: Scope, name: str, joint: str, spawner: Request | None) -> list[Request]:
        """Take a scope that ``spawner`` launched; returns the requests at whose end all that it waits for is over."""
        chains = chains_of(scope.requests)
        main = chains[0].requests
        small = max(AUX_TOKENS, max(r.prompt_tokens for r in main) // AUX_SHARE)
        self._add(chains[0], name, spawner)
        if spawner is not None:
            _spawn(main[0], spawner)
        for number, chain in enumerate(chains[1:]):
            anchor = chain.anchor or main[0]
            self._add(chain, f"{name}{joint}{_kind(chain, main[0].model, small)}:{number:03d}", anchor)
            _spawn(chain.requests[0], anchor, at_dispatch=chain.anchor is None)
        for chain in chains:
            for before, request in pairwise(chain.requests):
                request.edges.append((before, "completion", _pause(before, request), "sequence"))
        _add_barriers(chains)
        return [chain.requests[-1] for chain in chains] + self._subagents(scope, chains)

    def _add(self, chain: Chain, name: str, anchor: Request | None) -> None:
        for number, request in enumerate(chain.requests):
            request.conversation, request.turn = name, number
        self._depths[name] = 0 if anchor is None else self._depths[anchor.conversation] + 1
        # What began before a response had ended cannot go on from it, however much of the prompts is equal.
        forked = chain.anchor is not None and chain.anchor.end_ns <= chain.requests[0].start_ns
        self._talks.append(_Talk(name, chain.requests, anchor, "fork" if forked else "fresh"))

    def _subagents(self, scope: Scope, chains: list[Chain]) -> list[Request]:
        """Take the subagents of a scope; returns where those end that no request of it waits for, though it should."""
        requests = sorted(scope.requests, key=lambda r: r.when)
        turns_of = {chain.requests[0].conversation: chain.requests for chain in chains}
        unmet: list[Request] = []
        for subagent in sorted(scope.subagents, key=lambda s: (s.start_ns, s.order)):
            if not subagent.inside.requests:
                continue
            launched = (subagent.start_ns, subagent.order)
            before = bisect_left(requests, launched, key=lambda r: r.when)
            if not before:
                raise Malformed(
                    f"{subagent.where}: a subagent before the first request, expected the one that launched it"
                )
            owner = requests[before - 1]
            ends = self._take(subagent.inside, self._subagent_name(subagent), ":", owner)
            if not subagent.blocking:
                continue
            end_ns = subagent.end_ns() - EPSILON_NS
            later = turns_of[owner.conversation][owner.turn + 1 :]
            joins = next((r for r in later if r.when > launched and r.start_ns >= end_ns), None)
            if joins is None:
                unmet += ends
                continue
            for end in ends:
                joins.edges.append((end, "completion", _pause(end, joins), "join"))
        return unmet

    def _subagent_name(self, subagent: Subagent) -> str:
        name = first = f"{self._session_id}::sa:{subagent.agent_id}"
        again = 1
        while name in self._depths:
            again += 1
            name = f"{first}~{again}"
        return name


def _pause(before: Request, request: Request) -> int:
    return max(0, request.start_ns - before.end_ns)


def _kind(chain: Chain, main_model: str, small: int) -> str:
    first = chain.requests[0]
    aside = first.model != main_model or first.prompt_tokens < small
    return "aux" if aside and len(chain.requests) == 1 else "fa"


def _spawn(first: Request, anchor: Request, at_dispatch: bool = False) -> None:
    """Let a conversation start after ``anchor``: after its dispatch if it did so before the response had ended."""
    if at_dispatch or first.start_ns < anchor.end_ns:
        first.edges.append((anchor, "dispatch", max(0, first.start_ns - anchor.start_ns), "spawn"))
    else:
        first.edges.append((anchor, "completion", first.start_ns - anchor.end_ns, "spawn"))


def _add_barriers(chains: list[Chain]) -> None:
    """Let each request wait for what had ended in the other conversations of its scope before it was sent.

    The latest of each will do, and only where it does not follow from what the request waits for anyway: whoever comes
    before it in its conversation, and the other barriers.
    """
    if len(chains) < 2:
        return
    whose = {request: chain for chain in chains for request in chain.requests}
    by_end = sorted(whose, key=lambda r: (r.end_ns, r.start_ns, r.order))
    ends = [request.end_ns for request in by_end]
    for chain in chains:
        before = chain.anchor
        for request in chain.requests:
            since_ns = -1 if before is None else before.start_ns
            latest: dict[Chain, Request] = {}
            until = bisect_right(ends, request.start_ns + EPSILON_NS)
            for ended in by_end[bisect_left(ends, since_ns) : until]:
                implied = ended.start_ns < since_ns and ended.end_ns <= since_ns + EPSILON_NS
                if whose[ended] is not chain and ended.start_ns < request.start_ns and not implied:
                    latest[whose[ended]] = ended
            waits = {source for source, trigger, _, _ in request.edges if trigger == "completion"}
            for ended in latest.values():
                followed = any(
                    ended.start_ns < other.start_ns and ended.end_ns <= other.start_ns + EPSILON_NS
                    for other in latest.values()
                )
                if not followed and ended not in waits:
                    request.edges.append((ended, "completion", 0, "barrier"))
            before = request
