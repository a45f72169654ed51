"""The whole loop with recorded durations: how long does a replay of the trace do what the recording did?

Nothing is fed but the trace, the settings, the durations of recorded passes by geometry and the client's latencies. Who
comes when follows from when the replay answered, so the two part at some pass and stay apart.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine import knobs as knob_table
from engine.bundle.reader import Bundle
from engine.parity.check import equal_passes, stacked, waiting_at
from engine.parity.recorded import RecordedRun, read_recorded
from engine.parity.result import Batch
from engine.parity.timed_result import TimedDivergence, TimedParity
from engine.replay import ReplayResult, knobs_from_run, simulate
from engine.replay.tables import request_name
from engine.serving.members import Member, Members, members
from engine.timing import build_timing, measured_model
from engine.traces.tree import Trace

Ints = npt.NDArray[np.int64]


def check_closed_loop(bundle: Bundle, trace: Trace) -> TimedParity:
    """Replay the trace of a measured run in a closed loop with its durations, and compare pass by pass, by order.

    Requests are paired by the turns of the trace that they play. Of the divergences only the first is kept: what comes
    after it follows from it.

    Raises:
        GapscopeError: see :func:`engine.parity.check_parity`; the settings cannot be replayed.
    """
    recorded = read_recorded(bundle)
    values = knob_table.resolve({"timing": "measured", "measured_match": "geometry"}, knobs_from_run(bundle))
    model = measured_model(bundle)
    replayed = simulate(trace, values, build_timing(values, model), model)
    names = _source_turns(bundle, recorded)
    numbers = {name: n for n, name in enumerate(names) if name is not None}
    sent = replayed.client.sent
    mine = [
        request_name(c.conversation.conversation_id, turn, c.live.incarnation)
        for c, turn in zip(sent.conversation, sent.turn, strict=True)
    ]
    # Requests that the recording does not have get numbers of their own, past the recorded ones.
    number = np.array([numbers.get(name, len(names) + n) for n, name in enumerate(mine)], np.int64)
    batches = members(replayed.record)
    batches = Members(batches.pass_index, number[batches.index], batches.computed_before, batches.scheduled_tokens)
    equal = equal_passes(stacked(recorded.batches), stacked(batches), recorded.num_passes)
    result = TimedParity("loop", recorded.num_passes, int(equal.sum()))
    result.requests = sum(name is not None for name in names)
    result.matched = len(numbers.keys() & set(mine))
    result.anywhere = int(np.isin(_prints(recorded.batches), _prints(batches)).sum())
    apart = np.flatnonzero(~equal)
    if len(apart):
        loop = _Loop(bundle, recorded, replayed, batches, number, mine)
        result.add(loop.divergence(int(apart[0])))
        result.causes = {"parted": len(apart)}
    return result


def _prints(batches: Members) -> npt.NDArray[np.uint64]:
    """A number for each batch: equal for equal ones, wherever they ran."""
    first = np.flatnonzero(np.diff(batches.pass_index, prepend=-1))
    if not len(first):
        return np.empty(0, np.uint64)
    place = np.arange(len(batches)) - np.repeat(first, np.diff(np.append(first, len(batches))))
    mixed = np.zeros(len(batches), np.uint64)
    for column in (batches.index, batches.computed_before, batches.scheduled_tokens, place):
        mixed = (mixed ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return np.add.reduceat(mixed, first)


def _source_turns(bundle: Bundle, recorded: RecordedRun) -> list[str | None]:
    """What a replay calls each recorded request; None where the client's record does not have it.

    A turn that was played again has the count of its plays before.
    """
    table = bundle.table("requests", ["request_id", "conversation_id", "turn_index"])
    named: dict[str, str] = {}
    played: dict[tuple[str, int], int] = {}
    for row in [] if table is None else table.to_pylist():  # in order of dispatch
        turn = (row["conversation_id"], row["turn_index"])
        if None not in turn:
            named[row["request_id"]] = request_name(*turn, played.setdefault(turn, 0))
            played[turn] += 1
    return [named.get(request.request_id) for request in recorded.requests]


class _Loop:
    """What the first difference is made of."""

    def __init__(
        self,
        bundle: Bundle,
        recorded: RecordedRun,
        replayed: ReplayResult,
        batches: Members,
        number: Ints,
        mine: list[str],
    ) -> None:
        self._recorded, self._replayed, self._batches, self._number = recorded, replayed, batches, number
        self._names = [request.request_id for request in recorded.requests] + mine
        self._index = {int(n): index for index, n in enumerate(number)}
        table = bundle.table("requests", ["request_id", "dispatched_ns"])
        told = {} if table is None else {r["request_id"]: r["dispatched_ns"] for r in table.to_pylist()}
        self._dispatched = [told.get(request.request_id) for request in recorded.requests]

    def divergence(self, at: int) -> TimedDivergence:
        """The pass ``at`` on both sides."""
        recorded, passes = self._recorded, self._replayed.record.passes
        measured, replay = recorded.batches.batch(at), self._batches.batch(at)
        first = max((clear for clear in (0, *recorded.clears) if clear <= at), default=0)
        ran = at < len(passes["start_ns"])
        return TimedDivergence(
            int(recorded.pass_index[at]),
            "parted",
            self._explain(at, measured, replay),
            self._named(measured),
            self._named(replay),
            waiting_at(recorded.batches, recorded.requests, first, at),
            self._waiting(at) if ran else [],
            None if recorded.free_blocks is None else int(recorded.free_blocks[at]),
            recorded.config.usable_kv_blocks - int(passes["kv_blocks_used"][at]) if ran else None,
        )

    def _named(self, batch: list[Member]) -> Batch:
        return [(self._name(n), before, tokens) for n, before, tokens in batch]

    def _name(self, n: int) -> str:
        return self._names[n]

    def _waiting(self, at: int) -> list[str]:
        """Who had come and was not admitted yet in the replay."""
        served, start = self._replayed.record.requests, self._replayed.record.passes["start_ns"][at]
        admitted = (served["first_admit_pass"] >= 0) & (served["first_admit_pass"] <= at)
        waiting = np.flatnonzero((served["received_ns"] <= start) & ~admitted)
        return [self._name(int(self._number[index])) for index in waiting]

    def _explain(self, at: int, measured: list[Member], replay: list[Member]) -> str:
        mine, theirs = {n for n, _, _ in replay}, {n for n, _, _ in measured}
        for n in (*sorted(mine - theirs), *sorted(theirs - mine)):
            return (
                f"only the {'replay' if n in mine else 'recording'} has {self._name(n)} in its pass {at} (counted from "
                f"0); {self._sent(n)}"
            )
        if not replay:
            return "the replay has no further pass"
        for a, b in zip(measured, replay, strict=True):
            if a != b and a[0] == b[0]:
                return (
                    f"{self._name(a[0])} computes {a[2]} tokens after {a[1]} in the recording and {b[2]} after {b[1]} "
                    "in the replay"
                )
        return "the same requests run in another order"

    def _sent(self, n: int) -> str:
        """When a request was dispatched on both sides."""
        there = self._dispatched[n] if n < len(self._dispatched) else None
        index = self._index.get(n)
        here = None if index is None else self._replayed.client.sent.dispatched_ns[index]
        times = ["at an unknown time" if t is None else f"at {t / 1e9:.4f} s" for t in (there, here)]
        if n >= len(self._dispatched):
            return f"the recording does not have it, the replay sent it {times[1]}"
        if index is None:
            return f"the recording dispatched it {times[0]}, the replay never did"
        return f"dispatched {times[0]} in the recording and {times[1]} in the replay"
