"""Where in its recording a play is taken up: what lies before is history."""

from __future__ import annotations

from dataclasses import dataclass

from engine.workload.graph import NOBODY, PlayGraph


@dataclass(frozen=True, slots=True)
class Cut:
    """A play cut ``at_ns`` after its recorded beginning.

    By node: whether it is ``history``; how many retained nodes it ``waits`` for; and ``due_ns``, how long after the cut
    it is due at the earliest: the last of its edges from history fires, and the response that it continues ends (0:
    at once). ``primers`` are the last historical nodes of the conversations that go on, ``retained`` is the number of
    nodes that are not history.
    """

    at_ns: int
    history: list[bool]
    waits: list[int]
    due_ns: list[int]
    primers: list[int]
    retained: int


def cut_by_span(graph: PlayGraph, share: float) -> Cut:
    """Cut at this share of the time from the first recorded start, which all turns have, to the last.

    What started earlier is history. An edge from history fires when it did in the recording: its delay after the
    recorded dispatch or completion of the turn that it waits for, or at the recorded start of the waiting turn where no
    completion is recorded.
    """
    starts = graph.start_ns
    assert starts is not None
    first = min(starts)
    at = first + round(share * (max(starts) - first))
    return _cut(graph, [start < at for start in starts], at, recorded=True)


def cut_by_turns(graph: PlayGraph, share: float) -> Cut:
    """Cut the root conversation after this share of its turns, one of which at least is retained.

    What the historical turns spawned is history too. An edge from history fires its whole delay after the cut.
    """
    play = graph.play
    turns = play.conversations[0].turns
    kept = min(int(share * len(turns)), len(turns) - 1)
    history = [False] * len(graph.turn)
    for number in graph.parents_first():
        conversation, first = play.conversations[number], graph.first[number]
        spawned = first if number == 0 else graph.first[graph.parent[number]] + (conversation.after_turn or 0)
        gone = kept if number == 0 else len(conversation.turns) * history[spawned]
        history[first : first + gone] = [True] * gone
    at = turns[kept].not_before_ns if graph.start_ns is None else graph.start_ns[kept]
    return _cut(graph, history, (at or 0) if kept else 0, recorded=False)


def _cut(graph: PlayGraph, history: list[bool], at_ns: int, recorded: bool) -> Cut:
    waits = list(graph.waits)
    due = [max(0, delay - graph.scaled(at_ns)) for delay in graph.after_begin]
    for source in (node for node, gone in enumerate(history) if gone):
        for edges, completes in ((graph.on_dispatch[source], False), (graph.on_completion[source], True)):
            for target, delay in edges:
                if not history[target]:
                    waits[target] -= 1
                    after = _recorded_after(graph, source, target, completes, at_ns, delay) if recorded else delay
                    due[target] = max(due[target], after)
    for target, source in enumerate(graph.extends):
        if recorded and source != NOBODY and history[source] and not history[target]:
            due[target] = max(due[target], _recorded_after(graph, source, target, True, at_ns, 0))
    primers = []
    for number, first in enumerate(graph.first):
        nodes = range(first, first + len(graph.play.conversations[number].turns))
        gone = [node for node in nodes if history[node]]
        if gone and len(gone) < len(nodes):
            primers.append(gone[-1])
    return Cut(at_ns, history, waits, due, primers, history.count(False))


def _recorded_after(graph: PlayGraph, source: int, target: int, completes: bool, at_ns: int, delay_ns: int) -> int:
    """How long after the cut an edge fired in the recording."""
    starts, takes = graph.start_ns, graph.turn_at(source).api_ns if completes else 0
    assert starts is not None
    if takes is None:
        return graph.scaled(starts[target] - at_ns)
    return graph.scaled(starts[source] + takes - at_ns) + delay_ns
