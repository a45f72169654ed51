"""What a measured run says about its scheduler: who came when, what each pass computed, what the cache did.

Time here is counted in passes: pass ``p`` starts at time ``p``. Scheduler calls that computed nothing do not count.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from engine.bundle.reader import Bundle
from engine.errors import GapscopeError
from engine.parity.requests import RecordedRequest, read_requests, requests_table
from engine.parity.stored import StoredBlocks
from engine.parity.warm import HeldAtStart, RecordedEvents, held_at_start
from engine.serving.contract import ServerConfig
from engine.serving.members import Members
from engine.serving.record import EVICT, STORE

Ints = npt.NDArray[np.int64]

_EVENT_COLUMNS = ("event_index", "pass_index", "kind", "block_hashes", "content_hashes", "parent_hash")
_KINDS = {"store": STORE, "evict": EVICT}


@dataclass(slots=True)
class RecordedRun:
    """A run in the terms of the scheduler. ``batches.index`` and ``batches.pass_index`` number both from 0."""

    config: ServerConfig
    pass_index: Ints  # as the run numbers them
    start_ns: Ints
    end_ns: Ints
    batches: Members
    requests: list[RecordedRequest]  # in the order in which the engine took them
    free_blocks: Ints | None
    events: RecordedEvents | None
    held: HeldAtStart
    unnamed_requests: int
    """Requests that hit blocks whose content nothing tells."""
    clears: list[int]
    """Passes before which the whole cache was cleared; an engine does that only when nobody references a block."""

    @property
    def num_passes(self) -> int:
        """Passes that computed something."""
        return len(self.pass_index)


def read_recorded(bundle: Bundle) -> RecordedRun:
    """Read a measured run.

    Raises:
        GapscopeError: the run does not have requests or the composition of its batches, comes from several schedulers,
            or its identity does not say the scheduler's settings.
    """
    table = requests_table(bundle)
    config = _config(bundle)
    passes = computing_passes(bundle)
    names, batches = batches_of(passes)
    events = bundle.table("kv_events", list(_EVENT_COLUMNS))
    events = None if events is None else events.sort_by("event_index")
    stored = StoredBlocks(events, batches, config) if events is not None else None
    starts, ends = passes["start_ns"].to_numpy(), passes["end_ns"].to_numpy()
    requests, number = read_requests(table, names, batches, starts, ends, stored)
    run = RecordedRun(
        config=config,
        pass_index=passes["pass_index"].to_numpy(),
        start_ns=starts,
        end_ns=ends,
        batches=batches,
        requests=requests,
        free_blocks=None,
        events=None if events is None else _engine_events(events),
        held=HeldAtStart(),
        unnamed_requests=_count_unnamed(requests, number, batches, config.block_size),
        clears=[],
    )
    if events is not None and stored is not None and run.events is not None:
        clears = _clears(events, run.pass_index)
        if not clears:
            keys = [requests[n].block_keys for n in number[: len(names)]]
            num_held = _num_held(passes, events)
            run.held = held_at_start(batches, keys, stored, run.events, num_held, config.block_size)
        run.clears = [p for p in clears if 0 < p < run.num_passes]
    if not passes["kv_blocks_used"].null_count:
        run.free_blocks = config.usable_kv_blocks - passes["kv_blocks_used"].to_numpy()
    run.batches = replace(batches, index=number[batches.index])
    return run


def computing_passes(bundle: Bundle) -> pa.Table:
    """The passes that computed something, of the one scheduler of the run, each with its members.

    Raises:
        GapscopeError: the run does not hold who was in its batches with how many tokens, or has several schedulers.
    """
    passes = bundle.table("passes")
    sizes = None if passes is None else pc.fill_null(pc.list_value_length(passes["members"]), 0)
    if passes is None or not pc.any(pc.greater(sizes, 0)).as_py():
        raise GapscopeError(
            f"Run {bundle.run_id} does not record who was in its batches (passes.members): name a recording that does."
        )
    members = passes["members"].combine_chunks().flatten()
    if any(members.field(name).null_count for name in ("request_id", "computed_before", "scheduled_tokens")):
        raise GapscopeError(
            f"Run {bundle.run_id} does not record of every member of its batches who it was and how many tokens it had "
            "computed and computed there (passes.members): name a recording that does."
        )
    ranks = set(zip(passes["worker_id"].to_pylist(), passes["dp_rank"].to_pylist(), strict=True))
    if len(ranks) > 1:
        raise GapscopeError(
            f"Run {bundle.run_id} has the batches of {len(ranks)} schedulers (workers or ranks): expected those of one."
        )
    return passes.filter(pc.greater(sizes, 0))


def batches_of(passes: pa.Table) -> tuple[list[str], Members]:
    """The members of :func:`computing_passes`, and the request ids that their ``index`` counts, in order of first
    admission."""
    lists = passes["members"].combine_chunks()
    sizes = lists.value_lengths().to_numpy(zero_copy_only=False)
    flat = lists.flatten()
    encoded = flat.field("request_id").dictionary_encode()
    batches = Members(
        pass_index=np.repeat(np.arange(len(sizes)), sizes),
        index=encoded.indices.to_numpy().astype(np.int64),
        computed_before=flat.field("computed_before").to_numpy(),
        scheduled_tokens=flat.field("scheduled_tokens").to_numpy(),
    )
    return encoded.dictionary.to_pylist(), batches


def _config(bundle: Bundle) -> ServerConfig:
    def known(group: str, field: str, default: Any = None) -> Any:
        value = bundle.identity.value(group, field)
        if value is None and default is None:
            raise GapscopeError(
                f"Run {bundle.run_id}: its identity does not say {group}.{field}, which scheduler parity needs."
            )
        return default if value is None else value

    if known("scheduler", "async_scheduling", False) is True:
        raise GapscopeError(
            f"Run {bundle.run_id} was recorded with asynchronous scheduling: parity follows batches that are formed "
            "between two passes; expected a run without it."
        )
    return ServerConfig(
        usable_kv_blocks=int(known("capacity", "usable_kv_blocks")),
        block_size=int(known("capacity", "block_size")),
        max_num_seqs=int(known("scheduler", "max_num_seqs")),
        max_num_batched_tokens=int(known("scheduler", "max_num_batched_tokens")),
        long_prefill_token_threshold=int(known("scheduler", "long_prefill_token_threshold", 0)),
        prefix_caching=bool(known("capacity", "prefix_caching", True)),
        reserve_full_prompt=bool(known("scheduler", "reserve_full_prompt", True)),
    )


def _count_unnamed(requests: list[RecordedRequest], number: Ints, batches: Members, block_size: int) -> int:
    """Requests whose known keys end before the blocks that they hit when they were first admitted."""
    first = np.unique(batches.index, return_index=True)[1]
    hits = batches.computed_before[first] // block_size
    return sum(
        len(requests[number[n]].block_keys) < hit for n, hit in zip(batches.index[first], hits.tolist(), strict=True)
    )


def _engine_events(events: pa.Table) -> RecordedEvents | None:
    kinds: list[int] = []
    hashes: list[int] = []
    places: list[tuple[int, int | None]] = []
    for event in events.select(["event_index", "pass_index", "kind", "block_hashes"]).to_pylist():
        if event["kind"] in _KINDS and event["block_hashes"] is not None:
            kinds += [_KINDS[event["kind"]]] * len(event["block_hashes"])
            hashes += event["block_hashes"]
            places += [(event["event_index"], event["pass_index"])] * len(event["block_hashes"])
    return RecordedEvents(np.array(kinds, dtype=np.int8), hashes, places) if kinds else None


def _clears(events: pa.Table, pass_index: Ints) -> list[int]:
    """Passes before which the cache was cleared: the engine publishes a clear with the pass that follows it."""
    published = events.filter(pc.equal(events["kind"], "clear"))["pass_index"].drop_null().to_numpy()
    return sorted(set(np.searchsorted(pass_index, published).tolist()))


def _num_held(passes: pa.Table, events: pa.Table) -> int | None:
    """Distinct contents that the pool held before the first pass; None where nobody counted them."""
    cached = passes["kv_blocks_cached"][0].as_py()
    if cached is None:
        return None
    first = events.filter(pc.equal(events["pass_index"], passes["pass_index"][0])).to_pylist()
    changed = {kind: {h for e in first if e["kind"] == kind for h in e["block_hashes"] or ()} for kind in _KINDS}
    return int(cached) - len(changed["store"]) + len(changed["evict"])
