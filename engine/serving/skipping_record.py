"""From what the skipping core noted to the tables of a record, whole columns at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.serving.contract import Columns, ServerConfig, ServerRecord
from engine.serving.record import population_variance
from engine.serving.skipping_arrays import Ints, ceil_div, flat, ranges, spread
from engine.serving.skipping_events import build_events
from engine.serving.skipping_log import Log
from engine.serving.skipping_pool import RunPool

_REQUEST_COLUMNS = {
    "received_ns": "received_ns",
    "first_admit_ns": "first_admit_ns",
    "first_admit_pass": "first_admit_pass",
    "cached_tokens": "cached_tokens",
    "recomputed_tokens": "recomputed_tokens",
    "preemptions": "preemptions",
    "output_tokens": "sampled",
    "first_token_pass": "first_token_pass",
    "last_token_pass": "last_token_pass",
    "aborted": "aborted",
}


def build_record(
    log: Log,
    pool: RunPool,
    config: ServerConfig,
    requests: Mapping[int, Any],
    num_indices: int,
    between_ns: int,
    num_passes: int,
) -> ServerRecord:
    """The record of a finished server. ``requests`` are the core's own, by index."""
    chunks = flat(("pass_index", "index", "seq", "computed_before", "scheduled_tokens"), log.chunks)
    stretches = flat(("index", "seq", "first_pass", "computed_after_first"), log.stretches)
    stretches["last_pass"] = np.array(log.stretch_ends, np.int64)
    openings, closings = decode_blocks(stretches, config.block_size, num_passes)
    events, event_keys = build_events(pool, config, chunks, stretches, requests)
    return ServerRecord(
        passes=_passes(log, pool, config, chunks, openings, closings, between_ns, num_passes),
        requests=_requests(requests, num_indices),
        stretches={name: stretches[name] for name in _STRETCH_COLUMNS},
        prefill_chunks=chunks,
        admissions=_admissions(log),
        preemptions=flat(("index", "pass_index", "num_blocks"), log.preemptions),
        events=events,
        event_keys=event_keys,
    )


_STRETCH_COLUMNS = ("index", "seq", "first_pass", "last_pass", "computed_after_first")


def decode_blocks(stretches: Columns, block_size: int, num_passes: int) -> tuple[Ints, Ints]:
    """How many blocks decoding requests opened, and how many they filled, in each pass."""
    first, last, base = stretches["first_pass"], stretches["last_pass"], stretches["computed_after_first"]
    opened = ceil_div(base + last - first, block_size) - ceil_div(base, block_size)
    filled = (base + last - first) // block_size - base // block_size
    opening = np.repeat(first + 1 + -base % block_size, opened) + block_size * ranges(opened)
    filling = np.repeat(first + block_size - base % block_size, filled) + block_size * ranges(filled)
    return np.bincount(opening, minlength=num_passes), np.bincount(filling, minlength=num_passes)


def _passes(
    log: Log,
    pool: RunPool,
    config: ServerConfig,
    chunks: Columns,
    openings: Ints,
    closings: Ints,
    between_ns: int,
    num_passes: int,
) -> Columns:
    names = ("first", "decodes", "context", "squares", "used", "running", "waiting")
    segments = flat(names, log.segments)
    first = segments["first"]
    lengths = np.diff(first, append=num_passes)
    segment = np.repeat(np.arange(len(first)), lengths)
    step = np.arange(num_passes, dtype=np.int64) - first[segment]
    decodes, context = segments["decodes"][segment], segments["context"][segment]
    squares = segments["squares"][segment]
    squares += step * (2 * context + decodes * step)
    context += decodes * step
    opened = np.cumsum(openings)
    used = segments["used"][segment] + opened - (opened - openings)[first[segment]]

    names = ("pass_index", "requests", "new", "read", "known", "known_squares", "completed")
    prefills = flat(names, log.prefills)
    at = prefills["pass_index"]
    outputs = decodes.copy()
    outputs[at] += prefills["completed"]
    odd = flat(("pass_index", "context"), log.odd_decodes)
    decodes[odd["pass_index"]] += 1
    context[odd["pass_index"]] += odd["context"]
    squares[odd["pass_index"]] += odd["context"] * odd["context"]

    start, end, period = _times(log, between_ns)
    preempted = flat(("pass_index", "requests"), log.preempted)
    prefill_requests = spread(at, prefills["requests"], num_passes)
    known = spread(at, prefills["known"], num_passes)
    known_squares = spread(at, prefills["known_squares"], num_passes)
    return {
        "start_ns": start,
        "end_ns": end,
        "period_ns": period,
        "num_prefill_requests": prefill_requests,
        "sum_prefill_tokens": spread(at, prefills["new"], num_passes),
        "var_prefill_length": population_variance(prefill_requests, known, known_squares),
        "sum_prefill_kv_tokens": spread(at, prefills["read"], num_passes),
        "num_decode_requests": decodes,
        "sum_decode_kv_tokens": context,
        "var_decode_kv_tokens": population_variance(decodes, context, squares),
        **_queue_columns(log, first, segment),
        "num_output_tokens": outputs,
        "kv_blocks_used": used,
        "kv_blocks_cached": _cached(log, pool, config, chunks, openings, closings, num_passes),
        "num_running": segments["running"][segment],
        "num_waiting": segments["waiting"][segment],
        "num_preempted": spread(preempted["pass_index"], preempted["requests"], num_passes),
    }


def _times(log: Log, between_ns: int) -> tuple[Ints, Ints, Ints]:
    """When each pass started and ended, and the time from the end of the one before (-1 after a restart)."""
    duration = np.array(log.durations, np.int64)
    restarts = flat(("pass_index", "start_ns"), log.restarts)
    elapsed = np.cumsum(duration + between_ns) - duration - between_ns
    lengths = np.diff(restarts["pass_index"], append=len(duration))
    offset = restarts["start_ns"] - elapsed[restarts["pass_index"]]
    start = elapsed + np.repeat(offset, lengths)
    end = start + duration
    period = np.diff(end, prepend=0)
    period[restarts["pass_index"]] = -1
    return start, end, period


def _queue_columns(log: Log, first: Ints, segment: Ints) -> Columns:
    names = ("pass_index", "fresh", "fresh_sum", "fresh_squares", "again", "again_sum", "again_squares")
    queues = flat(names, log.queues)
    row = np.searchsorted(queues["pass_index"], first, side="right") - 1
    column = {name: queues[name][row][segment] for name in names}
    return {
        "queued_num_prefill_requests": column["fresh"],
        "queued_sum_prefill_tokens": column["fresh_sum"],
        "queued_var_prefill_length": population_variance(column["fresh"], column["fresh_sum"], column["fresh_squares"]),
        "queued_num_decode_requests": column["again"],
        "queued_sum_decode_kv_tokens": column["again_sum"],
        "queued_var_decode_kv_tokens": population_variance(
            column["again"], column["again_sum"], column["again_squares"]
        ),
    }


def _cached(
    log: Log,
    pool: RunPool,
    config: ServerConfig,
    chunks: Columns,
    openings: Ints,
    closings: Ints,
    num_passes: int,
) -> Ints:
    """Distinct content held after each pass was scheduled: what was registered less what was evicted."""
    if not config.prefix_caching:
        return np.zeros(num_passes, np.int64)
    size = config.block_size
    before, after = chunks["computed_before"], chunks["computed_before"] + chunks["scheduled_tokens"]
    taken, registered = openings.copy(), closings.copy()
    np.add.at(taken, chunks["pass_index"], ceil_div(after, size) - ceil_div(before, size))
    np.add.at(registered, chunks["pass_index"], after // size - before // size)
    copies = flat(("pass_index", "blocks"), log.copies)
    np.subtract.at(registered, copies["pass_index"], copies["blocks"])
    taken_by = np.cumsum(taken)
    cached = np.cumsum(registered)

    evictions = flat(("taken", "blocks"), pool.evictions)
    if len(evictions["taken"]):
        row = np.searchsorted(evictions["taken"], taken_by, side="left") - 1  # the last that began before
        begun = np.concatenate(([0], np.cumsum(evictions["blocks"])))
        within = np.minimum(taken_by - evictions["taken"][row], evictions["blocks"][row])
        cached -= np.where(row >= 0, begun[row] + within, 0)
        cached += np.searchsorted(np.array(pool.kept, np.int64), taken_by, side="left")
    return cached


def _requests(requests: Mapping[int, Any], num_indices: int) -> Columns:
    """One row per index; one that was never received has -1 everywhere but in its counts."""
    counts = ("recomputed_tokens", "preemptions", "output_tokens", "aborted")
    indices = np.fromiter(requests, np.int64, len(requests))
    table: Columns = {}
    for name, attribute in _REQUEST_COLUMNS.items():
        column = np.full(num_indices, 0 if name in counts else -1, bool if name == "aborted" else np.int64)
        column[indices] = [getattr(request, attribute) for request in requests.values()]
        table[name] = column
    return table


def _admissions(log: Log) -> Columns:
    names = ("index", "seq", "ordinal", "pass_index", "time_ns", "cached_tokens", "hit_blocks", "is_readmission")
    table = flat((*names, "waiting_ahead"), log.admissions)
    table["is_readmission"] = table["is_readmission"].astype(bool)
    return table
