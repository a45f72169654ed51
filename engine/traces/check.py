"""A trace must be a forest whose turns can all be sent: each conversation reached once, no turn waiting for itself."""

from __future__ import annotations

from engine.errors import GapscopeError
from engine.traces.edges import Place, edges_of, in_order
from engine.traces.tree import Conversation, Play, Trace, Turn

LONGEST_NS = 10**18
"""So that sums of times fit 64 bits."""
SHOWN = 5
"""How many turns of a ring are named."""


def check_trace(trace: Trace, where: str) -> None:
    """Make sure that every play can be played to its end.

    Raises:
        GapscopeError: no plays; a conversation without turns, named twice, unknown, or not reached from its root
            (a cycle); a child that contradicts its parent; tokens or times out of range; an empty prompt; an edge from
            a turn that is not there; turns that wait for each other.
    """
    if not trace.plays:
        raise GapscopeError(f"{where}: the trace has no plays.")
    seen: set[str] = set()
    for play in trace.plays:
        if not _is_plain(play):
            _check_play(play, where)
        for conversation in play.conversations:
            if conversation.conversation_id in seen:
                raise GapscopeError(f"{where}: conversation {conversation.conversation_id} is in two plays.")
            seen.add(conversation.conversation_id)


def _is_plain(play: Play) -> bool:
    """Whether a play is one conversation of turns that name their blocks and wait for the one before, and all is well.

    Most plays are; what is wrong with another, or odd, :func:`_check_play` says.
    """
    only = play.conversations[0] if len(play.conversations) == 1 else None
    if only is None or only.parent is not None or not only.turns:
        return False
    for turn in only.turns:
        if (
            turn.output_tokens < 1
            or not 0 <= turn.think_ns <= LONGEST_NS
            or turn.hash_ids is None
            or turn.prompt_tokens is None
            or turn.spawn
            or turn.edges is not None
            or turn.not_before_ns is not None
            or turn.start_ns is not None
            or turn.api_ns is not None
        ):
            return False
    return True


def _check_play(play: Play, where: str) -> None:
    where = f"{where}, play {play.source_trace_id}"
    by_id = {c.conversation_id: c for c in play.conversations}
    if len(by_id) != len(play.conversations):
        raise GapscopeError(f"{where}: a conversation is named twice.")
    if not play.conversations or play.conversations[0].parent is not None:
        raise GapscopeError(f"{where}: expected a root conversation (one without a parent) first.")
    reached = {play.conversations[0].conversation_id}
    for conversation in play.conversations:
        name = conversation.conversation_id
        if not conversation.turns:
            raise GapscopeError(f"{where}: conversation {name} has no turns.")
        for number, turn in enumerate(conversation.turns):
            if (
                turn.output_tokens < 1
                or not 0 <= turn.think_ns <= LONGEST_NS
                or (turn.hash_ids is None) != (turn.prompt_tokens is None)
            ):
                raise GapscopeError(
                    f"{where}: turn {number} of {name} needs at least 1 output token, a think time from 0 to 31 years, "
                    "and either segments or hash ids with a prompt length."
                )
            if turn.edges or turn.not_before_ns or turn.start_ns is not None or turn.api_ns is not None:
                _check_waits(turn, f"{where}: turn {number} of {name}", by_id)
            fresh = number == 0 and conversation.mode == "fresh" and turn.hash_ids is None
            if fresh and not any(segment.tokens > 0 for segment in turn.new_input):
                raise GapscopeError(f"{where}: turn 0 of {name} has an empty prompt.")
            for child_id in turn.spawn:
                child = by_id.get(child_id)
                if child is None:
                    raise GapscopeError(f"{where}: turn {number} of {name} spawns {child_id}, which is not there.")
                if child.parent != name or child.after_turn != number:
                    raise GapscopeError(
                        f"{where}: {child_id} is spawned by turn {number} of {name} but says that its parent is "
                        f"{child.parent} after turn {child.after_turn}."
                    )
                if child_id in reached:
                    raise GapscopeError(f"{where}: {child_id} is spawned twice.")
                reached.add(child_id)
    _check_reached(play, where, {c.conversation_id: c.parent for c in play.conversations}, reached)
    if any(turn.edges is not None for conversation in play.conversations for turn in conversation.turns):
        _check_order(play, where)


def _check_waits(turn: Turn, what: str, by_id: dict[str, Conversation]) -> None:
    """Its edges and times, each for itself."""
    for field, value in (("not_before_ns", turn.not_before_ns), ("start_ns", turn.start_ns), ("api_ns", turn.api_ns)):
        if value is not None and not 0 <= value <= LONGEST_NS:
            raise GapscopeError(f"{what}: {field} is {value}, expected a time from 0 to 31 years.")
    for edge in turn.edges or ():
        source = by_id.get(edge.conversation_id)
        if source is None or not 0 <= edge.turn < len(source.turns):
            raise GapscopeError(f"{what} waits for turn {edge.turn} of {edge.conversation_id}, which is not there.")
        if not 0 <= edge.delay_ns <= LONGEST_NS:
            raise GapscopeError(
                f"{what} waits {edge.delay_ns} ns after turn {edge.turn} of {edge.conversation_id}, "
                "expected a delay from 0 to 31 years."
            )


def _check_order(play: Play, where: str) -> None:
    edges = edges_of(play)
    done = set(in_order(play, edges))
    if len(done) == len(edges):
        return
    at = next(place for place in edges if place not in done)
    trail: dict[Place, None] = {}
    while at not in trail:  # back along turns that are not done: sooner or later one comes again
        trail[at] = None
        at = next((e.conversation_id, e.turn) for e in edges[at] if (e.conversation_id, e.turn) not in done)
    ring = list(trail)[list(trail).index(at) :]
    names = [f"turn {number} of {name}" for name, number in [*ring, at]]
    if len(ring) > SHOWN:
        names[SHOWN:-1] = [f"({len(ring) - SHOWN:,} more)"]
    raise GapscopeError(f"{where}: turns wait for each other: {' -> '.join(names)}.")


def _check_reached(play: Play, where: str, parents: dict[str, str | None], reached: set[str]) -> None:
    if len(play.conversations) == 1:
        return
    root = play.conversations[0].conversation_id
    good = {root}
    for name in parents:
        trail: list[str] = []
        at: str | None = name
        while at is not None and at not in good:
            if at in trail:
                raise GapscopeError(
                    f"{where}: a cycle of parents: " + " -> ".join([*trail[trail.index(at) :], at]) + "."
                )
            trail.append(at)
            at = parents.get(at)
        if at is None or name not in reached:
            raise GapscopeError(f"{where}: {name} is not spawned by any turn that the root {root} leads to.")
        good.update(trail)
