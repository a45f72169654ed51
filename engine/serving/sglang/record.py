"""From what the SGLang core noted to the tables of a record, whole columns at a time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from engine.serving.contract import Columns, ServerConfig, ServerRecord
from engine.serving.record import (
    ADMISSION_COLUMNS,
    CHUNK_COLUMNS,
    EVENT_COLUMNS,
    PREEMPTION_COLUMNS,
    STRETCH_COLUMNS,
    columns,
    pass_columns,
)
from engine.serving.sglang.log import CHUNK, DECODING, SEGMENT, Log
from engine.serving.sglang.request import Request
from engine.serving.skipping.arrays import Ints, add_up, ceil_div, flat, ranges


def build_record(log: Log, config: ServerConfig, requests: Mapping[int, Request], num_indices: int) -> ServerRecord:
    """The record of a finished server. ``requests`` are the core's own, by index."""
    chunks = flat(CHUNK, log.chunks)
    decoding = flat(DECODING, log.decoding)
    decoding["end"] = np.array(log.decoding_ends, np.int64)
    passes, step_passes = _passes(log, config.block_size, chunks, decoding)
    stretches, resumed = _stretches(decoding, step_passes)
    return ServerRecord(
        passes=passes,
        requests=_requests(requests, num_indices, decoding, step_passes),
        stretches=_ordered(stretches, "first_pass"),
        prefill_chunks=_ordered(
            {name: np.concatenate((chunks[name], resumed[name])) for name in CHUNK_COLUMNS}, "pass_index"
        ),
        admissions=columns(ADMISSION_COLUMNS, log.admissions),
        preemptions=columns(PREEMPTION_COLUMNS, log.preemptions),
        events=columns(EVENT_COLUMNS, log.events),
        event_keys=np.array(log.event_keys, np.int64),
    )


def _ordered(rows: Columns, by_pass: str) -> Columns:
    order = np.lexsort((rows["seq"], rows[by_pass]))
    return {name: column[order] for name, column in rows.items()}


def _passes(log: Log, page: int, chunks: Columns, decoding: Columns) -> tuple[Columns, Ints]:
    """The table of passes, and the pass of each decode step."""
    start = np.array(log.starts, np.int64)
    end = start + np.array(log.durations, np.int64)
    period = np.diff(end, prepend=0)
    period[log.restarts] = -1
    count = len(start)

    segments = flat(SEGMENT, log.segments)
    first = segments.pop("first")
    segment = np.repeat(np.arange(len(first)), np.diff(first, append=count))
    rows = {name: column[segment] for name, column in segments.items()}
    since = np.arange(count, dtype=np.int64) - first[segment]
    decodes, context = rows["decodes"], rows["context"]
    squares = rows["squares"] + since * (2 * context + decodes * since)
    context = context + decodes * since
    step_passes = np.flatnonzero(decodes)
    opened = np.zeros(count, np.int64)
    opened[step_passes] = _openings(decoding, page, len(step_passes))
    until = np.cumsum(opened)
    used = rows["used"] + until - (until - opened)[first[segment]]

    at, tokens, known = chunks["pass_index"], chunks["scheduled_tokens"], chunks["known"]
    before = chunks["computed_before"]
    counted = {
        "start_ns": start,
        "end_ns": end,
        "period_ns": period,
        "sum_prefill_tokens": add_up(at, tokens, count),
        "sum_prefill_kv_tokens": add_up(at, before, count),
        "num_output_tokens": decodes + add_up(at[before + tokens == known], 1, count),
        "kv_blocks_used": used,
        "kv_blocks_cached": rows["cached"],
        "num_running": rows["running"],
        "num_waiting": rows["queued_prefill.count"] + rows["queued_decode.count"],
        "num_preempted": np.where(since == 0, rows["preempted"], 0),
        "prefill.count": add_up(at, 1, count),
        "prefill.sum": add_up(at, known, count),
        "prefill.squares": add_up(at, known * known, count),
        "decode.count": decodes,
        "decode.sum": context,
        "decode.squares": squares,
        **{name: column for name, column in rows.items() if name.startswith("queued_")},
    }
    return pass_columns(counted), step_passes


def _openings(decoding: Columns, page: int, steps: int) -> Ints:
    """Pages that decoding requests opened in each decode step."""
    since, computed = decoding["since"], decoding["computed"]
    opened = ceil_div(computed + decoding["end"] - since, page) - ceil_div(computed, page)
    at = np.repeat(since + -computed % page, opened) + page * ranges(opened)
    return add_up(at, 1, steps)


def _stretches(decoding: Columns, step_passes: Ints) -> tuple[Columns, Columns]:
    """Contiguous runs of sampling passes, and the work of the passes with which a decoding request goes on.

    A request that decodes sits out the passes that only prefill: each of them ends its stretch, and the next decode
    step begins another.
    """
    first_pass, computed, since, end = (decoding[name] for name in ("first_pass", "computed", "since", "end"))
    count = len(first_pass)
    breaks = np.ones(len(step_passes), bool)
    breaks[1:] = np.diff(step_passes) != 1
    run = np.cumsum(breaks) - 1  # of contiguous decode passes, by step
    run_first = np.append(np.flatnonzero(breaks), len(step_passes))  # step with which each begins
    passes = np.append(step_passes, -1)
    runs = np.append(run, -1)

    decodes = end > since
    goes_on = decodes & (passes[since] == first_pass + 1)
    low, high = np.where(decodes, runs[since], 0), np.where(decodes, runs[end - 1], -1)
    pieces = high - low + 1 + ~goes_on  # one for the end of the prefill alone, where the next pass is no decode step
    row, piece = np.repeat(np.arange(count), pieces), ranges(pieces)
    is_first = piece == 0
    is_alone = is_first & ~goes_on[row]
    at_run = np.where(is_alone, 0, low[row] + piece - ~goes_on[row])
    begin = np.maximum(since[row], run_first[at_run])
    last = np.minimum(end[row], run_first[np.minimum(at_run + 1, len(run_first) - 1)]) - 1
    before = computed[row] + begin - since[row]
    stretches = {
        "index": decoding["index"][row],
        "seq": decoding["seq"][row],
        "first_pass": np.where(is_first, first_pass[row], passes[begin]),
        "last_pass": np.where(is_alone, first_pass[row], passes[last]),
        "computed_after_first": np.where(is_first, computed[row], before + 1),
    }
    later = ~is_first
    resumed = {
        "pass_index": passes[begin][later],
        "index": stretches["index"][later],
        "seq": stretches["seq"][later],
        "computed_before": before[later],
        "scheduled_tokens": np.ones(np.count_nonzero(later), np.int64),
    }
    return {name: stretches[name] for name in STRETCH_COLUMNS}, resumed


def _requests(requests: Mapping[int, Request], num_indices: int, decoding: Columns, step_passes: Ints) -> Columns:
    """One row per index; one that was refused has -1 everywhere but in its counts."""
    names = ("received_ns", "first_admit_ns", "first_admit_pass", "cached_tokens", "recomputed_tokens", "preemptions")
    table = {
        name: np.full(num_indices, 0 if name in ("recomputed_tokens", "preemptions") else -1, np.int64)
        for name in names
    }
    aborted = np.zeros(num_indices, bool)
    for request in requests.values():
        for name in names:
            table[name][request.index] = getattr(request, name)
        aborted[request.index] = request.aborted
    index, end, since = decoding["index"], decoding["end"], decoding["since"]
    last = np.where(end > since, np.append(step_passes, -1)[end - 1], decoding["first_pass"])
    first_token, last_token = np.full(num_indices, -1, np.int64), np.full(num_indices, -1, np.int64)
    # Rows come in the order in which the requests began to decode: the first of a request is written last.
    first_token[index[::-1]] = decoding["first_pass"][::-1]
    last_token[index] = last
    return {
        **table,
        "output_tokens": add_up(index, 1 + end - since, num_indices),
        "first_token_pass": first_token,
        "last_token_pass": last_token,
        "aborted": aborted,
    }
