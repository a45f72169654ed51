"""Runs a core on a recording's arrivals and compares every batch and every cache event with the recorded ones.

What the core gets: when each request came (as the pass that took it), its prompt's content, how many tokens it
sampled, and when it was aborted. What it must find by itself: who is in which batch, in which order, with how many
tokens computed before and now; which blocks are stored and which are evicted, in which order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from engine.bundle.reader import Bundle
from engine.parity.openloop import Segment, replay_recorded
from engine.parity.pairing import Content, Pairing
from engine.parity.recorded import RecordedRun, read_recorded
from engine.parity.requests import RecordedRequest
from engine.parity.result import Batch, BlockDivergence, BlockEvent, Divergence, ParityResult
from engine.parity.warm import RecordedEvents
from engine.serving.members import Members
from engine.serving.record import EVICT, STORE

T = TypeVar("T")
Ints = npt.NDArray[np.int64]


def check_parity(bundle: Bundle, core: str = "auto") -> ParityResult:
    """Feed a measured run's arrivals to a core and compare what it does with what was recorded.

    Raises:
        GapscopeError: the run does not record its batches, or its identity not the scheduler's settings.
    """
    recorded = read_recorded(bundle)
    replayed = replay_recorded(recorded, core)
    ours = np.concatenate([stacked(s.batches)[:, _in(s)] for s in replayed], axis=1)
    equal = equal_passes(stacked(recorded.batches), ours, recorded.num_passes)
    differing = np.flatnonzero(~equal)
    first = _divergence(recorded, replayed, int(differing[0])) if len(differing) else None
    result = ParityResult(
        core,
        recorded.num_passes,
        int(equal.sum()),
        first,
        unknown_requests=sum(not request.known for request in recorded.requests),
        unnamed_requests=recorded.unnamed_requests,
    )
    if recorded.events is None:
        return result
    return _with_events(result, recorded, recorded.events, replayed)


# -- batches -------------------------------------------------------------------------------------------------------


def equal_passes(theirs: Ints, mine: Ints, count: int) -> npt.NDArray[np.bool_]:
    """Which of the first ``count`` passes have the same members, in the same order, with the same tokens.

    Both sides as :func:`stacked` gives them.
    """
    theirs, mine = (side[:, side[0] < count] for side in (theirs, mine))
    equal: npt.NDArray[np.bool_] = np.equal(*(np.bincount(side[0], minlength=count) for side in (theirs, mine)))
    # Members of the passes of equal size lie at equal places once the other passes are left out.
    theirs, mine = (side[:, equal[side[0]]] for side in (theirs, mine))
    differing = theirs[0][(theirs != mine).any(axis=0)]
    equal[differing] = False
    return equal


def stacked(batches: Members) -> Ints:
    """One column per member: pass, request, tokens computed before, tokens scheduled."""
    return np.stack([batches.pass_index, batches.index, batches.computed_before, batches.scheduled_tokens])


def _in(segment: Segment) -> npt.NDArray[np.bool_]:
    passes = segment.batches.pass_index
    within: npt.NDArray[np.bool_] = (passes >= segment.first) & (passes < segment.last)
    return within


def _divergence(recorded: RecordedRun, replayed: list[Segment], at: int) -> Divergence:
    segment = next(s for s in replayed if s.first <= at < s.last)
    passes = segment.record.passes
    place = np.flatnonzero(passes["start_ns"] == at)
    used = int(passes["kv_blocks_used"][place[0]]) if len(place) else None
    return Divergence(
        pass_index=int(recorded.pass_index[at]),
        measured=_batch(recorded.batches, recorded.requests, at),
        replay=_batch(segment.batches, recorded.requests, at),
        measured_waiting=waiting_at(recorded.batches, recorded.requests, segment.first, at),
        replay_waiting=waiting_at(segment.batches, recorded.requests, segment.first, at),
        measured_free_blocks=None if recorded.free_blocks is None else int(recorded.free_blocks[at]),
        replay_free_blocks=None if used is None else recorded.config.usable_kv_blocks - used,
    )


def _batch(batches: Members, requests: Sequence[RecordedRequest], at: int) -> Batch:
    return [(requests[n].request_id, before, tokens) for n, before, tokens in batches.batch(at)]


def waiting_at(batches: Members, requests: Sequence[RecordedRequest], first: int, at: int) -> list[str]:
    """Who had come, had not gone and is not in the batch, in order of arrival."""
    last_seen = np.full(len(requests), -1)
    np.maximum.at(last_seen, batches.index, batches.pass_index)
    present = set(batches.index[batches.pass_index == at].tolist())
    waiting = []
    for number, request in enumerate(requests):
        came = first <= request.arrival <= at
        gone = (request.aborted is not None and request.aborted <= at) or 0 <= last_seen[number] < at
        if came and not gone and number not in present:
            waiting.append(request.request_id)
    return waiting


# -- cache events --------------------------------------------------------------------------------------------------


def _with_events(
    result: ParityResult, recorded: RecordedRun, events: RecordedEvents, replayed: list[Segment]
) -> ParityResult:
    kinds, keys, passes = _block_events(replayed)
    pairing = Pairing(recorded.held.hashes)
    stored, my_stored = _of_kind(events.kind, events.hashes, STORE), _of_kind(kinds, keys, STORE)
    removed, my_removed = _of_kind(events.kind, events.hashes, EVICT), _of_kind(kinds, keys, EVICT)
    stored_equal = sum(pairing.agree(mine, theirs) for mine, theirs in zip(my_stored, stored, strict=False))
    removed_equal = sum(pairing.known(mine, theirs) for mine, theirs in zip(my_removed, removed, strict=False))
    common = zip(kinds.tolist(), keys, events.kind.tolist(), events.hashes, strict=False)
    equal = [a == b and pairing.known(mine, theirs) for a, mine, b, theirs in common]
    at = equal.index(False) if False in equal else len(equal)
    measured = replay = None
    if at < len(events.hashes):
        event, pass_index = events.places[at]
        measured = BlockEvent(bool(events.kind[at] == STORE), events.hashes[at], pass_index, event)
    if at < len(keys):
        pass_index = int(recorded.pass_index[passes[at]])
        replay = BlockEvent(bool(kinds[at] == STORE), pairing.partner(keys[at]), pass_index)
    return replace(
        result,
        stored=len(stored),
        stored_equal=stored_equal,
        replay_stored=len(my_stored),
        removed=len(removed),
        removed_equal=removed_equal,
        replay_removed=len(my_removed),
        ordered_equal=sum(equal),
        first_block_divergence=BlockDivergence(at, measured, replay) if measured or replay else None,
    )


def _block_events(replayed: list[Segment]) -> tuple[Ints, list[Content], Ints]:
    """Kind, content and pass of every block event since the recording began."""
    kinds: list[Ints] = []
    keys: list[Content] = []
    passes: list[Ints] = []
    for number, segment in enumerate(replayed):
        events = segment.record.events
        starts = segment.record.passes["start_ns"][events["pass_index"]]
        block_kinds, block_starts = (np.repeat(column, events["num_keys"]) for column in (events["kind"], starts))
        within = block_starts >= segment.first
        kinds.append(block_kinds[within])
        keys += [key if key >= 0 else (number, key) for key in segment.record.event_keys[within].tolist()]
        passes.append(block_starts[within])
    return np.concatenate(kinds), keys, np.concatenate(passes)


def _of_kind(kinds: npt.NDArray[Any], values: Sequence[T], kind: int) -> list[T]:
    return [values[n] for n in np.flatnonzero(kinds == kind).tolist()]
