"""Lets a core schedule the arrivals of a recording, with time counted in passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from engine.parity.recorded import RecordedRun
from engine.parity.requests import RecordedRequest
from engine.serving import make_server
from engine.serving.contract import ServedRequest, Server, ServerRecord
from engine.serving.members import Members, members
from engine.timing.contract import PassQueries, PassTimes


class OneTick:
    """Every pass takes one nanosecond, so that pass p starts at time p."""

    between_ns = 0

    def pass_ns(
        self,
        prefill_requests: int,
        new_tokens: int,
        prefill_kv_tokens: int,
        decode_requests: int,
        decode_kv_tokens: int,
    ) -> int:
        """One tick."""
        return 1

    def explain(self, queries: PassQueries) -> PassTimes:
        """As many ticks as passes."""
        zeros, ones = np.zeros(len(queries), np.int64), np.ones(len(queries), np.int64)
        kinds = np.zeros(len(queries), np.int8)
        return PassTimes(zeros, zeros, ones, kinds, kinds, ("ordinal",), np.zeros(len(queries), np.int32), ("",))

    def describe(self) -> dict[str, str]:
        """No lineage to speak of."""
        return {"kind": "ordinal"}


@dataclass(slots=True)
class Segment:
    """The replay of the passes ``first .. last - 1``: between two clears, a server of its own."""

    first: int
    last: int
    requests: list[int]  # index in the record -> number in the recorded run, -1 for what filled the pool before
    record: ServerRecord
    batches: Members = field(init=False)

    def __post_init__(self) -> None:
        found = members(self.record)
        starts = self.record.passes["start_ns"]
        numbers = np.array(self.requests, dtype=np.int64)
        self.batches = Members(
            starts[found.pass_index], numbers[found.index], found.computed_before, found.scheduled_tokens
        )


def replay_recorded(recorded: RecordedRun, core: str) -> list[Segment]:
    """Let a core schedule the recorded arrivals, from clear to clear."""
    bounds = [0, *recorded.clears, recorded.num_passes]
    return [_replay_segment(recorded, first, last, core) for first, last in pairwise(bounds)]


def _replay_segment(recorded: RecordedRun, first: int, last: int, core: str) -> Segment:
    """An open loop: requests are received and aborted before the passes that the recording names."""
    server = make_server(recorded.config, OneTick(), core)
    held = recorded.held.chains if first == 0 else []
    fill_pool(server, held, recorded.config.block_size, first)
    index: dict[int, int] = {}  # number in the recording -> index of the served request
    now = first
    for until, arrivals, aborts in _agenda(recorded.requests, first, last):
        while server.has_work and now < until:
            now, _finished = server.advance(now, until)
        now = until
        for number in arrivals:
            request = recorded.requests[number]
            server.receive(
                ServedRequest(len(held) + len(index), request.prompt_tokens, request.output_tokens, request.block_keys),
                now,
            )
            index[number] = len(held) + len(index)
        for number in aborts:
            server.abort(index[number], now)
    return Segment(first, last, [-1] * len(held) + list(index), server.finish())


def fill_pool(server: Server, held: list[list[int]], block_size: int, end: int) -> None:
    """Let requests of one token come and go before pass ``end``, so that they leave what was held, in that order."""
    now = end - sum(len(chain) for chain in held) * block_size  # each pass computes a token at least
    for index, chain in enumerate(held):
        server.receive(ServedRequest(index, len(chain) * block_size, 1, chain), now)
        while server.has_work:
            now, _finished = server.advance(now, None)


def _agenda(requests: Sequence[RecordedRequest], first: int, last: int) -> Iterator[tuple[int, list[int], list[int]]]:
    """(pass, who arrives before it, who is aborted before it), in order; the end of the segment comes last."""
    arrivals: dict[int, list[int]] = {}
    aborts: dict[int, list[int]] = {}
    for number, request in enumerate(requests):
        if first <= request.arrival < last:
            arrivals.setdefault(request.arrival, []).append(number)
            if request.aborted is not None and request.aborted < last:
                aborts.setdefault(max(request.aborted, request.arrival), []).append(number)
    for at in sorted(arrivals.keys() | aborts.keys()):
        yield at, arrivals.get(at, []), sorted(aborts.get(at, []), key=lambda n: requests[n].released_ns or 0)
    yield last, [], []
