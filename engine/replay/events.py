"""The cache events of a replay: what was hit, stored, evicted, preempted and readmitted, block by block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from engine.arrays import coded, lists, numbers
from engine.replay.blocks import Blocks, as_table, spans
from engine.replay.result import Ints, ReplayResult
from engine.replay.workers import Workers
from engine.serving.contract import ServerRecord
from engine.serving.members import computed_at_end
from engine.serving.record import EVICT
from engine.workload.content import NO_KEY

KINDS = ("hit", "store", "evict", "preempt", "readmit")
_HIT, _STORE, _EVICT, _PREEMPT, _READMIT = range(5)


def kv_events(result: ReplayResult, blocks: Blocks, names: Sequence[str], workers: Workers) -> pa.Table:
    """Every cache event; in a pass preemptions first, then by request what it hit, evicted and stored.

    ``names`` are the ids of the requests, by index. A hit or readmission lists the blocks that were reused, a
    preemption those that were given up.
    """
    record = result.record
    gone, admitted, events = record.preemptions, record.admissions, record.events
    keep = (admitted["hit_blocks"] > 0) | admitted["is_readmission"]
    admitted = {name: column[keep] for name, column in admitted.items()}
    whole = _computed_at_preemption(record) // result.keys.block_size
    again = np.where(admitted["is_readmission"], _READMIT, _HIT)
    kind = np.concatenate([np.full(len(whole), _PREEMPT), again, np.where(events["kind"] == EVICT, _EVICT, _STORE)])
    pass_index = np.concatenate([gone["pass_index"], admitted["pass_index"], events["pass_index"]])
    index = np.concatenate([gone["index"], admitted["index"], events["index"]])
    # The blocks of a preemption or an admission are the first of their request; a partly filled one has no hash.
    leading = np.concatenate([whole, admitted["hit_blocks"]])
    first_keys = blocks.keys(np.repeat(index[: len(leading)], leading), spans(np.zeros_like(leading), leading))
    keys = np.concatenate([first_keys, record.event_keys])
    starts = np.concatenate([np.cumsum(leading) - leading, len(first_keys) + events["first_key"]])
    counts = np.concatenate([leading, events["num_keys"]])
    num_blocks = np.concatenate([gone["num_blocks"], admitted["hit_blocks"], events["num_keys"]])
    released = np.concatenate([np.zeros_like(leading), events["released_ns"]])

    own = np.arange(len(kind)) >= len(leading)  # what a request hit comes before what it evicted and stored
    turn = np.concatenate(
        [np.full(len(whole), -1), admitted["seq"], _seq_of(record, events["index"], events["pass_index"])]
    )
    order = np.lexsort((own, turn, workers.row[pass_index]))
    keys = keys[spans(starts[order], counts[order])]
    offsets = np.concatenate([[0], np.cumsum(counts[order])])
    kind, pass_index, index, released = kind[order], pass_index[order], index[order], released[order]
    parents = np.full(len(kind), NO_KEY, np.int64)
    stores = np.flatnonzero(kind == _STORE)
    parents[stores] = blocks.parents(keys[offsets[stores]])
    time = record.passes["start_ns"][pass_index]
    columns = {
        "event_index": numbers(np.arange(len(kind))),
        "time_ns": numbers(time),
        "pass_index": numbers(workers.row[pass_index]),
        **workers.of_passes(pass_index),
        "kind": coded(kind, KINDS),
        "request_id": coded(index, names),
        "num_blocks": numbers(num_blocks[order]),
        "block_hashes": lists(offsets, numbers(blocks.hashes(keys))),
        "parent_hash": numbers(blocks.hashes(parents), parents != NO_KEY),
        "reason": coded(np.where((kind == _EVICT) | (kind == _PREEMPT), 0, -1), ("capacity",)),
        "age_ns": numbers(time - released, kind == _EVICT),
    }
    return as_table(columns)


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
