"""One pass ahead: the recorded state, the recorded clock, and arrivals that are estimated from when they were sent.

Before each pass the server stands where the recording stood, its clock is the recorded one (durations and times between
passes are taken over by order), and a request has come if its dispatch and its estimated way to the engine are over. If
it then forms the recorded batch, it goes on from there by itself; if not, the pass is a divergence with a cause, and
state, queue and clock are set to the recorded ones before the next.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from engine.bundle.reader import Bundle
from engine.parity.clock import Clock, Estimated
from engine.parity.follow import RecordedServer, WatchedServer
from engine.parity.openloop import OneTick, fill_pool
from engine.parity.pairing import Pairing
from engine.parity.recorded import Ints, RecordedRun, read_recorded
from engine.parity.result import Batch
from engine.parity.timed_result import TimedDivergence, TimedParity
from engine.serving.contract import ServedRequest
from engine.serving.members import Member, Members
from engine.serving.record import EVICT, STORE


def check_by_dispatch(bundle: Bundle) -> TimedParity:
    """Feed a measured run's dispatch times to the scheduler and compare every batch with the recorded one.

    Raises:
        GapscopeError: see :func:`engine.parity.check_parity`.
    """
    recorded = read_recorded(bundle)
    clock = Clock(bundle, recorded)
    result = TimedParity("dispatch", recorded.num_passes, way=clock.way.to_json())
    result.requests, result.on_time = clock.way.requests, clock.way.explained
    events = _EventsByPass(recorded)
    for first, last in pairwise([0, *recorded.clears, recorded.num_passes]):
        _Follower(recorded, clock, result, first, last).follow(events)
    if events.known:
        result.stored, result.removed = events.total[STORE], events.total[EVICT]
        result.stored_equal, result.removed_equal = events.equal[STORE], events.equal[EVICT]
    return result


class _EventsByPass:
    """Recorded stores and evictions of each pass, as far as their passes were recorded."""

    def __init__(self, recorded: RecordedRun) -> None:
        events = recorded.events
        self.known = events is not None and all(at is not None for _, at in events.places)
        self.pairing = Pairing(recorded.held.hashes)
        self.total = {STORE: 0, EVICT: 0}
        self.equal = {STORE: 0, EVICT: 0}
        self._by_pass: dict[tuple[int, int], list[int]] = {}
        if events is None or not self.known:
            return
        at = np.searchsorted(recorded.pass_index, np.array([place[1] for place in events.places], np.int64))
        for kind, block, n in zip(events.kind.tolist(), events.hashes, at.tolist(), strict=True):
            self._by_pass.setdefault((n, kind), []).append(block)
            self.total[kind] += 1

    def compare(self, at: int, truth: WatchedServer, replay: WatchedServer) -> None:
        """Learn from the server that follows the recording which hash is which content, and count for the other."""
        if not self.known:
            return
        stored, removed = (self._by_pass.get((at, kind), []) for kind in (STORE, EVICT))
        for mine, theirs in zip(truth.stored, stored, strict=False):
            self.pairing.agree(mine, theirs)
        for mine, theirs in zip(truth.removed, removed, strict=False):
            self.pairing.known(mine, theirs)
        for kind, found, told in ((STORE, replay.stored, stored), (EVICT, replay.removed, removed)):
            self.equal[kind] += sum(self.pairing.known(a, b) for a, b in zip(found, told, strict=False))


class _Follower:
    """Goes through the passes ``first .. last - 1``, between two clears of the cache.

    ``truth`` forms the recorded batches; ``replay`` schedules what is estimated to have come.
    """

    def __init__(self, recorded: RecordedRun, clock: Clock, result: TimedParity, first: int, last: int) -> None:
        self._recorded, self._clock, self._result = recorded, clock, result
        self._first, self._last = first, last
        config, held = recorded.config, recorded.held.chains if first == 0 else []
        self._offset = len(held)  # indices below it belong to what filled the pool
        self._batches = _between(recorded.batches, first, last, self._offset)
        filled = WatchedServer(config, OneTick())
        fill_pool(filled, held, config.block_size, first)
        self._truth, self._replay = RecordedServer(config, OneTick(), self._batches), WatchedServer(config, OneTick())
        self._truth.pool = filled.pool
        self._replay.stand_where(self._truth)
        own = np.flatnonzero((clock.taken >= first) & (clock.taken < last)).tolist()
        self._arrivals = Estimated({n: float(clock.arrives[n]) for n in own if np.isfinite(clock.arrives[n])})
        self._cancels = Estimated({n: float(clock.dropped[n]) for n in own if np.isfinite(clock.dropped[n])})
        self._taken, self._dropped = _agenda(recorded, clock.taken, own)

    def follow(self, events: _EventsByPass) -> None:
        """Every pass of the stretch."""
        truth, replay = self._truth, self._replay
        for at in range(self._first, self._last):
            batch = self._batches.batch(at)
            self._deliver(at)
            replay.run(at)
            cause = None if replay.batch == batch else self._explain(at, batch)
            truth.run(at)
            events.compare(at, truth, replay)
            if cause is None:
                self._result.equal_passes += 1
                continue
            self._write(at, batch, *cause)
            replay.stand_where(truth)
            self._arrivals.resynchronise()
            self._cancels.resynchronise()

    def _deliver(self, at: int) -> None:
        """Who has come and who has given up before a pass, on both sides."""
        truth, replay, look = self._truth, self._replay, float(self._clock.look[at])
        unknown = []
        for n in self._taken.get(at, ()):
            truth.receive(self._served(n), at)
            if n in self._arrivals.times:
                self._arrivals.recorded(n)
            else:
                unknown.append(n)
        came = self._arrivals.due(look)
        for n in unknown:  # before whoever the engine took after it
            came.insert(next((place for place, other in enumerate(came) if other > n), len(came)), n)
        for n in came:
            replay.receive(self._served(n), at)
        both = []
        for n in self._dropped.get(at, ()):
            truth.drop(n + self._offset, at)
            if n in self._cancels.times:
                self._cancels.recorded(n)
            else:
                both.append(n)
        for n in self._cancels.due(look) + both:
            replay.drop(n + self._offset, at)
        if not replay.has_work and np.isfinite(self._arrivals.next_time):  # it waits until somebody comes
            for n in self._arrivals.due(max(self._arrivals.next_time, float(self._clock.start[at]))):
                replay.receive(self._served(n), at)

    def _served(self, n: int) -> ServedRequest:
        request = self._recorded.requests[n]
        return ServedRequest(n + self._offset, request.prompt_tokens, request.output_tokens, request.block_keys)

    # -- why a pass differs ------------------------------------------------------------------------------------

    def _explain(self, at: int, batch: list[Member]) -> tuple[str, str]:
        """The cause and a sentence: what would the scheduler do from the recorded state with the recorded arrivals?"""
        twin = WatchedServer(self._recorded.config, OneTick())
        twin.stand_where(self._truth)
        should = twin.next_batch(at)
        if should != batch:
            return self._explain_scheduler(batch, should)
        differing = _differing(batch, self._replay.batch, self._offset)
        displaced = (
            (self._cancels.ahead | self._cancels.behind, self._cancelled),
            (self._arrivals.ahead, self._early),
            (self._arrivals.behind, self._late),
        )
        for among, tell in displaced:
            if found := among & differing:
                return tell(at, min(found))
        for among, tell in displaced:  # somebody who is in neither batch, but in the way
            if among:
                return tell(at, min(among))
        queue = [index for index, _, _ in self._replay.batch if index in differing] + self._replay.waiting
        if any(b < a for a, b in pairwise(queue)):
            return "arrival_order", (
                f"requests were estimated to reach the engine in the order {', '.join(map(self._name, queue))}, and it "
                "took them in another"
            )
        return "carried_over", "an earlier difference in who waits or what is held shows in a batch only now"

    def _explain_scheduler(self, batch: list[Member], should: list[Member]) -> tuple[str, str]:
        differing = _differing(batch, should, self._offset)
        requests, block = self._recorded.requests, self._recorded.config.block_size
        for n in sorted(differing):
            if not requests[n].known:
                return "unknown_request", (
                    f"the client's record does not have {requests[n].request_id}: what it computed is inferred"
                )
        for index, before, _ in batch:
            n = index - self._offset
            if n in differing and before // block > len(requests[n].block_keys):
                return "unknown_content", (
                    f"{requests[n].request_id} had {before} tokens without computing them, from blocks whose content "
                    "nothing tells"
                )
        names = ", ".join(requests[n].request_id for n in sorted(differing)[:4])
        return "scheduler", (
            "the same requests from the same state make another batch under the scheduler's rules and the recorded "
            f"settings; it differs in {names}"
        )

    def _early(self, at: int, n: int) -> tuple[str, str]:
        clock = self._clock
        q = int(clock.taken[n])
        return "arrival_early", (
            f"{self._sent(n)} and so reached the engine {clock.look[at] - clock.arrives[n]:.1f} ms before it looked "
            f"for pass {self._pass(at)}; it took it for pass {self._pass(q)}, so the way took more than "
            f"{clock.look[q - 1] - clock.dispatched[n]:.1f} ms"
        )

    def _late(self, at: int, n: int) -> tuple[str, str]:
        clock = self._clock
        q = int(clock.taken[n])
        return "arrival_late", (
            f"{self._sent(n)} and so reached the engine {clock.arrives[n] - clock.look[at]:.1f} ms after it looked for "
            f"pass {self._pass(at)}; it took it for pass {self._pass(q)}, so the way took at most "
            f"{clock.look[q] - clock.dispatched[n]:.1f} ms"
        )

    def _sent(self, n: int) -> str:
        name, clock = self._recorded.requests[n].request_id, self._clock
        way = clock.arrives[n] - clock.dispatched[n]
        return f"{name} was dispatched at {clock.dispatched[n] / 1e3:.4f} s, was estimated to need {way:.1f} ms"

    def _cancelled(self, at: int, n: int) -> tuple[str, str]:
        clock, early = self._clock, n in self._cancels.ahead
        dropped = self._recorded.requests[n].aborted
        when = "before no later pass" if dropped is None else f"before pass {self._pass(dropped)}"
        return "cancel_time", (
            f"the cancel of {self._recorded.requests[n].request_id} was estimated to reach the engine "
            f"{abs(clock.look[at] - clock.dropped[n]):.1f} ms {'before' if early else 'after'} it looked for pass "
            f"{self._pass(at)}; it dropped the request {when}"
        )

    # -- writing it down ---------------------------------------------------------------------------------------

    def _write(self, at: int, batch: list[Member], cause: str, explanation: str) -> None:
        free = self._recorded.free_blocks
        self._result.add(
            TimedDivergence(
                self._pass(at),
                cause,
                explanation,
                self._named(batch),
                self._named(self._replay.batch),
                [self._name(index) for index in self._truth.waiting],
                [self._name(index) for index in self._replay.waiting],
                None if free is None else int(free[at]),
                self._replay.free_blocks,
            )
        )

    def _pass(self, at: int) -> int:
        """The number that the run gives a pass."""
        numbers = self._recorded.pass_index
        return int(numbers[at]) if at < len(numbers) else int(numbers[-1]) + 1

    def _name(self, index: int) -> str:
        return self._recorded.requests[index - self._offset].request_id

    def _named(self, batch: list[Member]) -> Batch:
        return [(self._name(index), before, tokens) for index, before, tokens in batch]


def _between(batches: Members, first: int, last: int, offset: int) -> Members:
    """The members of the passes ``first .. last - 1``, with ``offset`` added to the numbers of their requests."""
    low, high = np.searchsorted(batches.pass_index, [first, last])
    columns = (batches.pass_index, batches.index + offset, batches.computed_before, batches.scheduled_tokens)
    return Members(*(column[low:high] for column in columns))


def _agenda(recorded: RecordedRun, taken: Ints, own: list[int]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Who came and who was dropped before which pass, in the engine's order."""
    arrivals: dict[int, list[int]] = {}
    drops: dict[int, list[int]] = {}
    for n in own:
        arrivals.setdefault(int(taken[n]), []).append(n)
        at = recorded.requests[n].aborted
        if at is not None:
            drops.setdefault(max(at, int(taken[n])), []).append(n)
    for dropped in drops.values():
        dropped.sort(key=lambda n: recorded.requests[n].released_ns or 0)
    return arrivals, drops


def _differing(left: list[Member], right: list[Member], offset: int) -> set[int]:
    """Numbers of the requests in which two batches differ; where only their order does, of all out of place."""
    found = {index - offset for index, _, _ in set(left) ^ set(right)}
    return found or {a[0] - offset for a, b in zip(left, right, strict=True) if a != b}
