"""What a measured run says about its scheduler: who came when, what each pass computed, what the cache did.

Time here is counted in passes: pass ``p`` starts at time ``p``. Scheduler calls that computed nothing do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from engine.bundle.reader import Bundle
from engine.errors import GapscopeError
from engine.parity.stored import StoredBlocks
from engine.parity.warm import HeldAtStart, RecordedEvents, held_at_start
from engine.serving.contract import ServerConfig
from engine.serving.members import Members
from engine.serving.record import EVICT, STORE

Ints = npt.NDArray[np.int64]

_REQUEST_COLUMNS = (
    "request_id",
    "status",
    "received_ns",
    "released_ns",
    "input_tokens",
    "requested_output_tokens",
    "output_tokens",
    "prompt_block_hashes",
    "output_block_hashes",
)
_EVENT_COLUMNS = ("event_index", "pass_index", "kind", "block_hashes", "content_hashes", "parent_hash")
_KINDS = {"store": STORE, "evict": EVICT}


@dataclass(slots=True)
class RecordedRequest:
    """A request as the engine met it. ``aborted`` is the pass before which it was dropped, None if it was not."""

    request_id: str
    arrival: int
    prompt_tokens: int
    output_tokens: int
    block_keys: list[int]
    aborted: int | None


@dataclass(slots=True)
class RecordedRun:
    """A run in the terms of the scheduler. ``batches.index`` and ``batches.pass_index`` number both from 0."""

    config: ServerConfig
    pass_index: Ints  # as the run numbers them
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
        GapscopeError: the run does not have the composition of its batches, comes from several schedulers, or its
            identity does not say the scheduler's settings.
    """
    config = _config(bundle)
    passes = _computing_passes(bundle)
    names, batches = _batches(passes)
    events = bundle.table("kv_events", list(_EVENT_COLUMNS))
    events = None if events is None else events.sort_by("event_index")
    stored = StoredBlocks(events, batches, config) if events is not None else None
    requests, number = _requests(bundle, names, batches, passes["start_ns"].to_numpy(), stored)
    run = RecordedRun(
        config=config,
        pass_index=passes["pass_index"].to_numpy(),
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


def _computing_passes(bundle: Bundle) -> pa.Table:
    """The passes that computed something, of the one scheduler of the run."""
    passes = bundle.table("passes")
    if passes is None or passes["members"].null_count == len(passes):
        raise GapscopeError(
            f"Run {bundle.run_id} does not hold the composition of its batches (passes.members): scheduler parity "
            "needs a recording that has it."
        )
    ranks = set(zip(passes["worker_id"].to_pylist(), passes["dp_rank"].to_pylist(), strict=True))
    if len(ranks) > 1:
        raise GapscopeError(
            f"Run {bundle.run_id} has the passes of {len(ranks)} schedulers (workers or ranks): scheduler parity "
            "follows one at a time."
        )
    return passes.filter(pc.greater(pc.fill_null(pc.list_value_length(passes["members"]), 0), 0))


def _batches(passes: pa.Table) -> tuple[list[str], Members]:
    """The members of the passes, and the request ids that their ``index`` counts, in order of first admission."""
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

    return ServerConfig(
        usable_kv_blocks=int(known("capacity", "usable_kv_blocks")),
        block_size=int(known("capacity", "block_size")),
        max_num_seqs=int(known("scheduler", "max_num_seqs")),
        max_num_batched_tokens=int(known("scheduler", "max_num_batched_tokens")),
        long_prefill_token_threshold=int(known("scheduler", "long_prefill_token_threshold", 0)),
        prefix_caching=bool(known("capacity", "prefix_caching", True)),
        reserve_full_prompt=bool(known("scheduler", "reserve_full_prompt", True)),
    )


def _requests(
    bundle: Bundle,
    names: list[str],
    batches: Members,
    starts: Ints,
    stored: StoredBlocks | None,
) -> tuple[list[RecordedRequest], Ints]:
    """Every request that the engine took, in that order, and the number of each of ``names`` among them."""
    table = bundle.table("requests", list(_REQUEST_COLUMNS))
    rows = {row["request_id"]: row for row in table.to_pylist()} if table is not None else {}
    lives = _lives(batches, len(names))
    seen = set(names)
    ids = names + [name for name, row in rows.items() if row["received_ns"] is not None and name not in seen]
    received = _received(ids, rows, lives, starts)
    order = sorted(range(len(ids)), key=lambda n: (received[n], n))  # names come in order of first admission
    given = [_given_keys(rows.get(name)) for name in ids]
    if stored is not None:
        for n, keys in enumerate(given):
            stored.learn(n, keys)
    numbers: dict[Any, int] = {}
    requests: list[RecordedRequest] = []
    for n in order:
        row, life = rows.get(ids[n]), lives[n] if n < len(names) else None
        prompt = row["input_tokens"] if row else life.prompt_tokens  # type: ignore[union-attr]
        keys = given[n] if stored is None else stored.continued(n, given[n])
        requests.append(
            RecordedRequest(
                request_id=ids[n],
                arrival=int(np.searchsorted(starts, received[n])),
                prompt_tokens=prompt,
                output_tokens=_output_tokens(row, prompt, life),
                block_keys=[numbers.setdefault(key, len(numbers)) for key in keys],
                aborted=_aborted(row, life, starts),
            )
        )
    number = np.empty(len(ids), dtype=np.int64)
    number[order] = np.arange(len(ids))
    return requests, number


def _count_unnamed(requests: list[RecordedRequest], number: Ints, batches: Members, block_size: int) -> int:
    """Requests whose known keys end before the blocks that they hit when they were first admitted."""
    first = np.unique(batches.index, return_index=True)[1]
    hits = batches.computed_before[first] // block_size
    return sum(
        len(requests[number[n]].block_keys) < hit for n, hit in zip(batches.index[first], hits.tolist(), strict=True)
    )


def _given_keys(row: dict[str, Any] | None) -> list[int]:
    return [] if row is None else (row["prompt_block_hashes"] or []) + (row["output_block_hashes"] or [])


@dataclass(slots=True)
class _Life:
    """A request in the passes: its first and last, and the tokens that had KV when it was last seen."""

    first_pass: int
    last_pass: int
    prompt_tokens: int  # at the end of its last chunk of more than one token: all that matters to a scheduler
    computed: int


def _lives(batches: Members, count: int) -> list[_Life]:
    lives: list[_Life | None] = [None] * count
    for n, p, before, tokens in zip(
        batches.index.tolist(),
        batches.pass_index.tolist(),
        batches.computed_before.tolist(),
        batches.scheduled_tokens.tolist(),
        strict=True,
    ):
        life = lives[n]
        if life is None:
            lives[n] = _Life(p, p, before + tokens, before + tokens)
            continue
        if tokens > 1 and life.computed == life.prompt_tokens:
            life.prompt_tokens = max(life.prompt_tokens, before + tokens)
        life.last_pass, life.computed = p, before + tokens
    return [life for life in lives if life is not None]


def _received(ids: list[str], rows: dict[str, dict[str, Any]], lives: Sequence[_Life], starts: Ints) -> list[int]:
    """When the engine took each request; where nobody recorded it, the latest time that explains its admission.

    Admissions are first come, first served, so it came before whoever was admitted after it.
    """
    recorded = [rows[name]["received_ns"] if name in rows else None for name in ids]
    received = [0] * len(ids)
    latest = int(starts[-1])
    for n in reversed(range(len(ids))):
        known = recorded[n]
        if known is None:
            known = min(latest, int(starts[lives[n].first_pass]))
        received[n] = known
        if n < len(lives):
            latest = min(latest, known)
    return received


def _output_tokens(row: dict[str, Any] | None, prompt: int, life: _Life | None) -> int:
    """How many tokens a request samples if nobody aborts it."""
    sampled = max(life.computed - prompt + 1, 1) if life is not None else 1
    if row is None:
        return sampled
    if row["status"] == "ok":
        return max(int(row["output_tokens"]), 1)
    requested = row["requested_output_tokens"]
    return max(int(requested), 1) if requested is not None else sampled + 1


def _aborted(row: dict[str, Any] | None, life: _Life | None, starts: Ints) -> int | None:
    if row is None or row["status"] in ("ok", "in_flight"):
        return None
    if row["released_ns"] is not None:
        return int(np.searchsorted(starts, row["released_ns"]))
    return life.last_pass + 1 if life is not None else None


def _engine_events(events: pa.Table) -> RecordedEvents | None:
    kinds: list[int] = []
    hashes: list[int] = []
    for event in events.select(["kind", "block_hashes"]).to_pylist():
        if event["kind"] in _KINDS and event["block_hashes"] is not None:
            kinds += [_KINDS[event["kind"]]] * len(event["block_hashes"])
            hashes += event["block_hashes"]
    return RecordedEvents(np.array(kinds, dtype=np.int8), hashes) if kinds else None


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
