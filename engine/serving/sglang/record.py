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
from engine.serving.skipping.arrays import Ints, add_up, flat, ranges
from engine.serving.skipping.growth import Growth, Verified, burst_growth, steady_growth, verifications


def build_record(log: Log, config: ServerConfig, requests: Mapping[int, Request], num_indices: int) -> ServerRecord:
    """The record of a finished server. ``requests`` are the core's own, by index."""
    chunks = flat(CHUNK, log.chunks)
    decoding = flat(DECODING, log.decoding)
    decoding["end"] = np.array(log.decoding_ends, np.int64)
    # The same in decode steps as the growth of blocks is worked out for passes: one before the first, then one by one.
    steps = {
        "first_pass": decoding["since"] - 1,
        "last_pass": decoding["end"] - 1,
        "computed_after_first": decoding["computed"],
    }
    verified, width = None, 1
    if config.speculation is None:
        growth = steady_growth(steps, config.block_size)
    else:
        width = config.speculation.width
        verified = verifications(steps, log.bursts)
        growth = burst_growth(steps, verified, config.block_size, width)
    passes, step_passes = _passes(log, growth, verified, chunks)
    decoding["sampled"] = _sampled(decoding, verified)
    stretches, resumed = _stretches(decoding, step_passes, verified, width)
    stretches = _ordered(stretches, "first_pass")
    return ServerRecord(
        passes=passes,
        requests=_requests(requests, num_indices, decoding, step_passes),
        stretches={name: stretches[name] for name in STRETCH_COLUMNS},
        prefill_chunks=_ordered(
            {name: np.concatenate((chunks[name], resumed[name])) for name in CHUNK_COLUMNS}, "pass_index"
        ),
        admissions=columns(ADMISSION_COLUMNS, log.admissions),
        preemptions=columns(PREEMPTION_COLUMNS, log.preemptions),
        events=columns(EVENT_COLUMNS, log.events),
        event_keys=np.array(log.event_keys, np.int64),
        bursts=_bursts(stretches, verified),
        verify_width=width,
    )


def _ordered(rows: Columns, by_pass: str) -> Columns:
    order = np.lexsort((rows["seq"], rows[by_pass]))
    return {name: column[order] for name, column in rows.items()}


def _sampled(decoding: Columns, verified: Verified | None) -> Ints:
    """Tokens that each request sampled in its decode steps."""
    if verified is None:
        return decoding["end"] - decoding["since"]
    return add_up(verified.row, verified.sampled, len(decoding["end"]))


def _passes(log: Log, growth: Growth, verified: Verified | None, chunks: Columns) -> tuple[Columns, Ints]:
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
    decodes, context, squares = rows["decodes"], rows["context"], rows["squares"]
    step_passes = np.flatnonzero(decodes)
    if verified is None:
        squares += since * (2 * context + decodes * since)
        context += decodes * since
        outputs = decodes
    else:
        at, before = step_passes[verified.pass_index], verified.before
        context, squares = add_up(at, before, count), add_up(at, before * before, count)
        outputs = add_up(at, verified.sampled, count)
    opened = np.zeros(count, np.int64)
    opened[step_passes] = growth.opened_in(len(step_passes))
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
        "num_output_tokens": outputs + add_up(at[before + tokens == known], 1, count),
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


def _stretches(decoding: Columns, step_passes: Ints, verified: Verified | None, width: int) -> tuple[Columns, Columns]:
    """Contiguous runs of sampling passes, and the work of the passes with which a decoding request goes on.

    A request that decodes sits out the passes that only prefill: each of them ends its stretch, and the next decode
    step begins another. ``first_step`` and ``steps`` say which decode steps of its request a stretch has, as a slice of
    all there are, request after request.
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
    stop = np.minimum(end[row], run_first[np.minimum(at_run + 1, len(run_first) - 1)])
    later = ~is_first
    first_step = (np.cumsum(end - since) - end)[row] + begin
    if verified is None:
        before, sampled = computed[row] + begin - since[row], np.ones(len(row), np.int64)
    else:
        before, sampled = np.zeros(len(row), np.int64), np.zeros(len(row), np.int64)
        before[later], sampled[later] = verified.before[first_step[later]], verified.sampled[first_step[later]]
    stretches = {
        "index": decoding["index"][row],
        "seq": decoding["seq"][row],
        "first_pass": np.where(is_first, first_pass[row], passes[begin]),
        "last_pass": np.where(is_alone, first_pass[row], passes[stop - 1]),
        "computed_after_first": np.where(is_first, computed[row], before + sampled),
        "ends_prefill": is_first,
        "first_step": first_step,
        "steps": np.where(is_alone, 0, stop - begin),
    }
    resumed = {
        "pass_index": passes[begin][later],
        "index": stretches["index"][later],
        "seq": stretches["seq"][later],
        "computed_before": before[later],
        "scheduled_tokens": np.full(np.count_nonzero(later), width, np.int64),
    }
    return stretches, resumed


def _bursts(stretches: Columns, verified: Verified | None) -> Ints:
    """Tokens sampled in each pass of each stretch."""
    if verified is None:
        return np.empty(0, np.int64)
    steps, ends_prefill = stretches["steps"], stretches["ends_prefill"]
    lengths = steps + ends_prefill
    bursts = np.ones(lengths.sum(), np.int64)
    decodes = np.ones(len(bursts), np.bool_)
    decodes[(np.cumsum(lengths) - lengths)[ends_prefill]] = False
    bursts[decodes] = verified.sampled[np.repeat(stretches["first_step"], steps) + ranges(steps)]
    return bursts


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
        "output_tokens": add_up(index, 1 + decoding["sampled"], num_indices),
        "first_token_pass": first_token,
        "last_token_pass": last_token,
        "aborted": aborted,
    }
