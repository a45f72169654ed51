"""Traces in a few words, and a client against an engine that serves any number of requests at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from engine import knobs
from engine.serving.contract import Finished
from engine.traces.tree import Conversation, Play, Segment, Trace, Turn
from engine.workload.client import Client
from engine.workload.hash_ids import block_keys_of
from engine.workload.primed import make_client

MS = 1_000_000


def turn(name: str, tokens: int = 20, output: int = 5, think_ms: float = 0, spawn: tuple[str, ...] = ()) -> Turn:
    return Turn(output, round(think_ms * MS), (Segment(name, tokens),), spawn)


def talk(
    name: str,
    *turns: Turn,
    parent: str | None = None,
    after: int | None = None,
    fork: bool = False,
    depth: int = 0,
) -> Conversation:
    return Conversation(name, list(turns), parent, after, "fork" if fork else "fresh", depth)


def trace_of(*plays: list[Conversation]) -> Trace:
    return Trace("hand", "test", "0" * 64, [Play(p[0].conversation_id, p) for p in plays])


@dataclass
class Request:
    name: str  # conversation/turn, with #n for a play that is played again
    scheduled: float  # ms, as all times here
    dispatched: float
    end: float
    ok: bool
    lane: int


def settle(
    trace: Trace, changes: dict[str, Any], service_ms: Callable[[str], float] | float = 100.0
) -> tuple[list[Request], Client]:
    """Play to the end; each request is served in its ``service_ms``, from when it reached the engine."""
    values = knobs.resolve(changes)
    client = make_client(trace, values, block_keys_of(trace, values["block_size"]))
    ends: list[tuple[int, int]] = []
    gone: set[int] = set()
    now = client.start_ns
    while True:
        for request in client.due(now):
            serve = service_ms if isinstance(service_ms, int | float) else service_ms(_name(client, request.index))
            heappush(ends, (now + round(serve * MS), request.index))
        gone.update(client.aborts(now))
        while ends and ends[0][0] <= now:
            end, index = heappop(ends)
            if index not in gone:
                client.finished(Finished(index, 0, end, end, 0))
        times = [t for t in (client.next_ns, ends[0][0] if ends else None) if t is not None]
        if not times:
            break
        now = max(now, min(times))
    sent = client.sent
    rows = [
        Request(
            _name(client, i),
            sent.scheduled_ns[i] / MS,
            sent.dispatched_ns[i] / MS,
            sent.end_ns[i] / MS,
            sent.ok[i],
            sent.conversation[i].live.lane,
        )
        for i in range(len(sent))
    ]
    return rows, client


def _name(client: Client, index: int) -> str:
    live = client.sent.conversation[index]
    again = f"#{live.live.incarnation}" if live.live.incarnation else ""
    return f"{live.conversation.conversation_id}{again}/{client.sent.turn[index]}"
