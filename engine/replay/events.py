"""The cache events of a replay: what was hit, stored, evicted, preempted and readmitted, block by block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from engine.arrays import coded, lists, numbers
from engine.replay.blocks import Blocks, as_table, taken
from engine.replay.result import Ints, ReplayResult
from engine.replay.workers import Workers
from engine.serving.contract import ServerRecord
from engine.serving.host_tier import FORGET
from engine.serving.members import computed_at_end
from engine.serving.record import EVICT
from engine.workload.content import NO_KEY

KINDS = ("hit", "store", "evict", "preempt", "readmit")
_HIT, _STORE, _EVICT, _PREEMPT, _READMIT, _RESTORE = range(6)
_HOST_STAGE = 4
_Rows = dict[str, Ints]


def kv_events(result: ReplayResult, blocks: Blocks, names: Sequence[str], workers: Workers) -> pa.Table:
    """Every cache event; in a pass preemptions first, then by request what it hit, evicted, restored and stored.

    ``names`` are the ids of the requests, by index. A hit or readmission lists the blocks that were reused, a
    preemption those that were given up. With host memory, what was copied there and what was forgotten comes last in a
    pass, after who let go of it.
    """
    record = result.record
    gone, admitted, events = record.preemptions, record.admissions, record.events
    keep = (admitted["hit_blocks"] > 0) | admitted["is_readmission"]
    hits = {name: column[keep] for name, column in admitted.items()}
    again = np.where(hits["is_readmission"], _READMIT, _HIT)
    whole = _computed_at_preemption(record) // result.keys.block_size
    # The blocks of a preemption or an admission are the first of their request; a partly filled one has no hash.
    groups = [
        _own(blocks, gone, np.full(len(whole), _PREEMPT), whole, turn=-1) | {"num_blocks": gone["num_blocks"]},
        _own(blocks, hits, again, hits["hit_blocks"], turn=hits["seq"]),
    ]
    stored = np.where(events["kind"] == EVICT, _EVICT, _STORE)
    turn = _seq_of(record, events["index"], events["pass_index"])
    moved = _listed(
        events, record.event_keys, stored, events["num_keys"], turn, stage=1, released=events["released_ns"]
    )
    on_host = "restored_blocks" in admitted
    if on_host:
        loads = {name: column[admitted["restored_blocks"] > 0] for name, column in admitted.items()}
        restored = np.full(len(loads["seq"]), _RESTORE)
        groups.append(
            _own(blocks, loads, restored, loads["restored_blocks"], loads["seq"], loads["hit_blocks"], stage=2)
        )
        groups += [_without(moved, loads), *_of_host(record)]
    else:
        groups.append(moved)

    bases = np.cumsum([0, *(len(group["keys"]) for group in groups)])
    rows = {name: np.concatenate([group[name] for group in groups]) for name in groups[0]}
    rows["first"] += np.repeat(bases[:-1], [len(group["kind"]) for group in groups])
    all_keys = rows.pop("keys")
    order = np.lexsort((rows["stage"], rows["turn"], workers.row[rows["pass_index"]]))
    rows = {name: column[order] for name, column in rows.items()}
    kind, pass_index = rows["kind"], rows["pass_index"]
    keys = taken(all_keys, rows["first"], rows["counts"])
    offsets = np.concatenate([[0], np.cumsum(rows["counts"])])
    device = rows["stage"] < _HOST_STAGE
    parents = np.full(len(kind), NO_KEY, np.int64)
    stores = np.flatnonzero(((kind == _STORE) | (kind == _RESTORE)) & device)
    parents[stores] = blocks.parents(keys[offsets[stores]])
    time = record.passes["start_ns"][pass_index]
    tier = {"tier": coded(np.where(device & (kind != _RESTORE), 0, 1), ("device", "host"))} if on_host else {}
    columns = {
        "event_index": numbers(np.arange(len(kind))),
        "time_ns": numbers(time),
        "pass_index": numbers(workers.row[pass_index]),
        **workers.of_passes(pass_index),
        "kind": coded(kind, (*KINDS, "restore") if on_host else KINDS),
        **tier,
        "request_id": coded(rows["index"], names),
        "num_blocks": numbers(rows["num_blocks"]),
        "block_hashes": lists(offsets, numbers(blocks.hashes(keys))),
        "parent_hash": numbers(blocks.hashes(parents), parents != NO_KEY),
        "reason": coded(np.where((kind == _EVICT) | (kind == _PREEMPT), 0, -1), ("capacity",)),
        "age_ns": numbers(time - rows["released"], (kind == _EVICT) & device),
    }
    return as_table(columns)


def _listed(
    events: _Rows,
    keys: Ints,
    kind: Ints,
    counts: Ints,
    turn: Ints | int,
    stage: int,
    first: Ints | None = None,
    released: Ints | None = None,
) -> _Rows:
    """Rows of the table to be, whose blocks are ``counts`` of ``keys`` from ``first`` on.

    In a pass they come in order of ``turn`` and then of ``stage``.
    """
    count = len(kind)
    return {
        "kind": kind,
        "pass_index": events["pass_index"],
        "index": events["index"],
        "keys": keys,
        "first": events["first_key"] if first is None else first,
        "counts": counts,
        "num_blocks": counts,
        "released": np.zeros(count, np.int64) if released is None else released,
        "turn": np.broadcast_to(np.asarray(turn, np.int64), count),
        "stage": np.full(count, stage, np.int8),
    }


def _own(
    blocks: Blocks, events: _Rows, kind: Ints, counts: Ints, turn: Ints | int, start: Ints | None = None, stage: int = 0
) -> _Rows:
    """Rows whose blocks are those of their request from position ``start`` on."""
    begin = np.zeros_like(counts) if start is None else start
    keys, first = blocks.located(events["index"], begin, counts)
    return _listed(events, keys, kind, counts, turn, stage, first)


def _without(moved: _Rows, loads: _Rows) -> _Rows:
    """What was stored, without the blocks that had been restored: they come first where an admission stores."""
    width = int(moved["index"].max(initial=0)) + 1
    stores = np.flatnonzero(moved["kind"] == _STORE)
    order = stores[np.argsort(moved["pass_index"][stores] * width + moved["index"][stores], kind="stable")]
    at = np.searchsorted(
        moved["pass_index"][order] * width + moved["index"][order], loads["pass_index"] * width + loads["index"]
    )
    restored = np.zeros(len(moved["kind"]), np.int64)
    restored[order[at]] = loads["restored_blocks"]
    counts = moved["counts"] - restored
    moved |= {"first": moved["first"] + restored, "counts": counts, "num_blocks": counts}
    moved["stage"] = np.where(moved["kind"] == _STORE, 3, 1).astype(np.int8)
    keys = moved.pop("keys")
    return {name: column[counts > 0] for name, column in moved.items()} | {"keys": keys}


def _of_host(record: ServerRecord) -> list[_Rows]:
    """What was copied to the host and what it forgot; who was preempted let go as the pass was scheduled."""
    events = record.host_events
    if not events:
        return []
    passes = len(record.passes["start_ns"])
    gone = record.preemptions["index"] * passes + record.preemptions["pass_index"]
    preempted = np.isin(events["index"] * passes + events["pass_index"], gone)
    turn = np.where(preempted, -1, len(record.admissions["seq"]))
    kind = np.where(events["kind"] == FORGET, _EVICT, _STORE)
    return [_listed(events, record.host_keys, kind, events["num_keys"], turn, _HOST_STAGE)]


def _seq_of(record: ServerRecord, index: Ints, pass_index: Ints) -> Ints:
    """The admission under which each request ran in a pass, which is its place in the batch; -1 where unknown."""
    admissions, passes = record.admissions, len(record.passes["start_ns"])
    began = admissions["index"] * passes + admissions["pass_index"]
    order = np.argsort(began)
    at = np.searchsorted(began[order], index * passes + pass_index, side="right") - 1
    return np.where(index >= 0, admissions["seq"][order][at], -1)


def _computed_at_preemption(record: ServerRecord) -> Ints:
    """Tokens with KV that each preempted request had: those of the admission that the preemption ended."""
    admissions, chunks, stretches = record.admissions, record.prefill_chunks, record.stretches
    computed = np.zeros(len(admissions["seq"]) and int(admissions["seq"].max()) + 1, np.int64)
    np.maximum.at(computed, chunks["seq"], chunks["computed_before"] + chunks["scheduled_tokens"])
    computed[stretches["seq"]] = 0  # the chunk with which a decode goes on counts drafts that may have been rejected
    np.maximum.at(computed, stretches["seq"], computed_at_end(record))
    gone = record.preemptions
    return computed[_seq_of(record, gone["index"], gone["pass_index"] - 1)]
