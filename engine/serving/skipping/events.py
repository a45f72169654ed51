"""Cache events of the skipping core, put in order after the run.

In a pass, requests come in the order of their admission (``seq``); what a request's allocation evicts comes before
what it stores. The pool counts the blocks it takes: the n-th block taken belongs to the n-th allocation in that
order, so each eviction finds its pass and request.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.serving.contract import Columns, ServerConfig
from engine.serving.record import EVICT, STORE, private_key
from engine.serving.skipping.arrays import Ints, add_up, ceil_div, flat, ranges
from engine.serving.skipping.growth import Growth
from engine.serving.skipping.pool import RunPool
from engine.serving.skipping.request import ScheduledRequest

_COLUMNS = ("kind", "pass_index", "index", "first_key", "num_keys", "released_ns")


def build_events(
    pool: RunPool,
    config: ServerConfig,
    chunks: Columns,
    reserves: Columns,
    stretches: Columns,
    growth: Growth,
    requests: Mapping[int, ScheduledRequest],
) -> tuple[Columns, Ints]:
    """The tables ``events`` and ``event_keys``; empty unless the configuration asks for them."""
    if not (config.record_events and config.prefix_caching):
        return {name: np.empty(0, np.int64) for name in _COLUMNS}, np.empty(0, np.int64)
    stores, store_keys = _stores(config.block_size, chunks, stretches, growth, requests)
    evictions, eviction_keys = _evictions(pool, _allocations(config.block_size, chunks, reserves, stretches, growth))
    evictions["source"] += len(store_keys)
    keys = np.concatenate((store_keys, eviction_keys))
    rows = {name: np.concatenate((evictions[name], stores[name])) for name in evictions}
    order = _order(rows["pass_index"], rows["seq"], rows["kind"] == STORE)
    rows = {name: column[order] for name, column in rows.items()}
    counts = rows["num_keys"]
    rows["first_key"] = np.cumsum(counts) - counts
    return {name: rows[name] for name in _COLUMNS}, keys[np.repeat(rows["source"], counts) + ranges(counts)]


def _allocations(block_size: int, chunks: Columns, reserves: Columns, stretches: Columns, growth: Growth) -> Columns:
    """Every allocation of blocks, in order: ``pass_index, seq, index, count``; ``seq`` is -1 before a pass."""
    before, after = chunks["computed_before"], chunks["computed_before"] + chunks["scheduled_tokens"]
    rows = {
        "pass_index": np.concatenate((chunks["pass_index"], growth.opened_pass, reserves["pass_index"])),
        "seq": np.concatenate(
            (chunks["seq"], stretches["seq"][growth.opened_row], np.full(len(reserves["index"]), -1, np.int64))
        ),
        "index": np.concatenate((chunks["index"], stretches["index"][growth.opened_row], reserves["index"])),
        "count": np.concatenate(
            (
                ceil_div(after, block_size) - ceil_div(before, block_size) + chunks["restored"] - chunks["prepaid"],
                growth.opened,
                reserves["count"],
            )
        ),
    }
    order = _order(rows["pass_index"], rows["seq"])
    return {name: column[order] for name, column in rows.items()}


def _evictions(pool: RunPool, allocations: Columns) -> tuple[Columns, Ints]:
    """Blocks that lost their content, in one row per allocation and time of release, and their keys in that order."""
    rows = flat(("taken", "lost"), pool.evictions)
    sources = flat(("owner", "end", "released_ns"), pool.eviction_sources)
    lost = rows["lost"]
    row, step = np.repeat(np.arange(len(lost)), lost), ranges(lost)
    allocation = np.searchsorted(np.cumsum(allocations["count"]), rows["taken"][row] + step, side="right")
    released = sources["released_ns"][row]
    keys = _private_keys(sources["owner"][row], sources["end"][row] - 1 - step)
    given = array("q")
    for content, end, count in zip(pool.eviction_keys, sources["end"].tolist(), lost.tolist(), strict=True):
        if content is not None:
            given += content[end - count : end][::-1]
    keys[sources["owner"][row] < 0] = given

    is_first = np.ones(len(row), bool)
    is_first[1:] = (np.diff(allocation) != 0) | (np.diff(released) != 0)
    first = np.flatnonzero(is_first)
    allocation = allocation[first]
    events = {
        "kind": np.full(len(first), EVICT, np.int64),
        "pass_index": allocations["pass_index"][allocation],
        "seq": allocations["seq"][allocation],
        "index": allocations["index"][allocation],
        "source": first,
        "num_keys": np.diff(first, append=len(row)),
        "released_ns": released[first],
    }
    return events, keys


def _stores(
    block_size: int,
    chunks: Columns,
    stretches: Columns,
    growth: Growth,
    requests: Mapping[int, ScheduledRequest],
) -> tuple[Columns, Ints]:
    """Blocks that got content: one row per prefill chunk or decode that filled any."""
    after = chunks["computed_before"] + chunks["scheduled_tokens"]
    first = chunks["computed_before"] // block_size - chunks["restored"]
    chunk_blocks = after // block_size - first
    chunk = np.flatnonzero(chunk_blocks)
    chunk_blocks = chunk_blocks[chunk]
    decoded = add_up(growth.filled_row, growth.filled, len(stretches["seq"]))
    filled = growth.filled_pass
    chunk_keys = _keys(chunks["index"][chunk], first[chunk], chunk_blocks, requests)
    decoded_keys = _keys(stretches["index"], stretches["computed_after_first"] // block_size, decoded, requests)
    row = growth.filled_row
    total = len(chunk) + len(filled)
    events = {
        "kind": np.full(total, STORE, np.int64),
        "pass_index": np.concatenate((chunks["pass_index"][chunk], filled)),
        "seq": np.concatenate((chunks["seq"][chunk], stretches["seq"][row])),
        "index": np.concatenate((chunks["index"][chunk], stretches["index"][row])),
        "source": np.concatenate(
            (
                np.cumsum(chunk_blocks) - chunk_blocks,
                len(chunk_keys) + np.cumsum(growth.filled) - growth.filled,
            )
        ),
        "num_keys": np.concatenate((chunk_blocks, growth.filled)),
        "released_ns": np.full(total, -1, np.int64),
    }
    return events, np.concatenate((chunk_keys, decoded_keys))


def _keys(index: Ints, start: Ints, count: Ints, requests: Mapping[int, ScheduledRequest]) -> Ints:
    """Keys of ``count`` blocks from ``start`` on of each of these requests, one after another."""
    steps = ranges(count)
    keys = _private_keys(np.repeat(index, count), np.repeat(start, count) + steps)
    has_keys = np.array([len(requests[i].keys) for i in index.tolist()], np.int64)
    given = np.clip(has_keys - start, 0, count)
    row = np.flatnonzero(given)
    flat_keys = array("q")
    for i, first, stop in zip(index[row].tolist(), start[row].tolist(), (start + given)[row].tolist(), strict=True):
        flat_keys += requests[i].keys[first:stop]
    keys[steps < np.repeat(given, count)] = flat_keys
    return keys


def _private_keys(index: Ints, position: Ints) -> Ints:
    on_arrays: Any = private_key  # plain arithmetic: the same for a number and for a column
    keys: Ints = on_arrays(index, position)
    return keys


def _order(pass_index: Ints, seq: Ints, is_store: Ints | None = None) -> Ints:
    """Sorts by pass, then request, then evictions before stores; what is equal stays in order."""
    width = int(seq.max(initial=0)) + 2
    rank = pass_index * width + seq + 1
    if is_store is not None:
        rank = 2 * rank + is_store
    return np.argsort(rank, kind="stable")
