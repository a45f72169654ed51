"""From what the skipping core noted to the tables of a record, whole columns at a time."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter

import numpy as np

from engine.serving.contract import Columns, ServerConfig, ServerRecord
from engine.serving.host_tier import HostTier
from engine.serving.record import population_variance
from engine.serving.skipping.arrays import Flags, Ints, add_up, ceil_div, flat
from engine.serving.skipping.events import build_events
from engine.serving.skipping.growth import Growth, Verified, burst_growth, steady_growth, verifications
from engine.serving.skipping.log import Log
from engine.serving.skipping.pool import RunPool
from engine.serving.skipping.request import ScheduledRequest

_CHUNK_COLUMNS = ("pass_index", "index", "seq", "computed_before", "scheduled_tokens")
_STRETCH_COLUMNS = ("index", "seq", "first_pass", "last_pass", "computed_after_first")


def build_record(
    log: Log,
    pool: RunPool,
    config: ServerConfig,
    requests: Mapping[int, ScheduledRequest],
    num_indices: int,
    host: HostTier | None = None,
) -> ServerRecord:
    """The record of a finished server. ``requests`` are the core's own, by index."""
    start, end, period = _times(log)
    facts = _facts(requests, num_indices)
    chunks = flat((*_CHUNK_COLUMNS, "known"), log.chunks)
    stretches = flat(("index", "seq", "first_pass", "computed_after_first"), log.stretches)
    stretches["last_pass"] = np.array(log.stretch_ends, np.int64)
    admissions = _admissions(log, config, start)
    chunks["restored"] = _restored(chunks, admissions)
    chunks["joined"], chunks["prepaid"] = _joined(log, chunks, admissions, config.block_size)
    reserves = flat(("pass_index", "index", "count"), log.reserves)
    preemptions = flat(("index", "pass_index", "num_blocks", "known"), log.preemptions)
    verified = None
    if config.speculation is None:
        growth = steady_growth(stretches, config.block_size)
    else:
        verified = verifications(stretches, log.bursts)
        growth = burst_growth(stretches, verified, config.block_size, config.speculation.width)
    passes = {"start_ns": start, "end_ns": end, "period_ns": period}
    passes |= _batches(log, chunks, admissions, growth, verified, facts)
    passes |= _queues(facts, admissions, preemptions, len(start))
    passes["kv_blocks_cached"] = _cached(log, pool, config, chunks, reserves, growth)
    events, event_keys = build_events(pool, config, chunks, reserves, stretches, growth, requests)
    return ServerRecord(
        passes=passes,
        requests=_requests(facts, admissions, preemptions, stretches, verified),
        stretches={name: stretches[name] for name in _STRETCH_COLUMNS},
        prefill_chunks={name: chunks[name] for name in _CHUNK_COLUMNS},
        admissions=admissions,
        preemptions={name: preemptions[name] for name in ("index", "pass_index", "num_blocks")},
        events=events,
        event_keys=event_keys,
        bursts=_bursts(stretches, verified),
        verify_width=config.speculation.width if config.speculation else 1,
        **(host.record() if host is not None else {}),
    )


def _bursts(stretches: Columns, verified: Verified | None) -> Ints:
    """Tokens sampled in each pass of each stretch, the first of which is 1."""
    if verified is None:
        return np.empty(0, np.int64)
    lengths = stretches["last_pass"] - stretches["first_pass"] + 1
    bursts = np.ones(lengths.sum(), np.int64)
    later = np.ones(len(bursts), np.bool_)
    later[np.cumsum(lengths) - lengths] = False
    bursts[later] = verified.sampled
    return bursts


def _times(log: Log) -> tuple[Ints, Ints, Ints]:
    """When each pass started and ended, and the time from the end of the one before (-1 after a restart).

    The last restart may be of a pass that nobody had room for, and that never came.
    """
    start = np.array(log.starts, np.int64)
    end = start + np.array(log.durations, np.int64)
    period = np.diff(end, prepend=0)
    restarts = np.array(log.restarts, np.int64)
    period[restarts[restarts < len(start)]] = -1
    return start, end, period


def _facts(requests: Mapping[int, ScheduledRequest], num_indices: int) -> Columns:
    """What the core knows of each request, by index; -1 (no tokens) where none was received."""
    indices = np.fromiter(requests, np.int64, len(requests))
    facts: Columns = {}
    for name in ("received_ns", "received_in", "aborted_in", "gone_in", "prompt_tokens", "recomputed_tokens"):
        facts[name] = np.full(num_indices, 0 if name.endswith("tokens") else -1, np.int64)
        facts[name][indices] = list(map(attrgetter(name), requests.values()))
    return facts


def _restored(chunks: Columns, admissions: Columns) -> Ints:
    """Blocks from the host that get room and are registered with each chunk: the first of an admission."""
    seq = chunks["seq"]
    if "restored_blocks" not in admissions:
        return np.zeros(len(seq), np.int64)
    is_first = chunks["pass_index"] == admissions["pass_index"][seq]
    return np.where(is_first, admissions["restored_blocks"][seq], 0)


def _joined(log: Log, chunks: Columns, admissions: Columns, block_size: int) -> tuple[Flags, Ints]:
    """Which chunks are the first of who came with a computed prompt, and how many of their blocks were taken before.

    What came is registered with the chunk, like what is restored.
    """
    joins, seq = flat(("seq", "blocks"), log.joins), chunks["seq"]
    came = np.full(len(admissions["seq"]), -1, np.int64)
    came[joins["seq"]] = joins["blocks"]
    joined = (came[seq] >= 0) & (chunks["pass_index"] == admissions["pass_index"][seq])
    chunks["restored"] += np.where(joined, came[seq], 0)
    before, after = chunks["computed_before"], chunks["computed_before"] + chunks["scheduled_tokens"]
    own = ceil_div(after, block_size) - ceil_div(before, block_size)
    return joined, np.where(joined, own + chunks["restored"], 0)


def _admissions(log: Log, config: ServerConfig, start_ns: Ints) -> Columns:
    rows = flat(("index", "ordinal", "pass_index", "hit_blocks"), log.admissions)
    found = rows["hit_blocks"]
    more: Columns = {}
    if config.host is not None:
        restores = flat(("seq", "blocks"), log.restores)
        more["restored_blocks"] = add_up(restores["seq"], restores["blocks"], len(found))
        found = found + more["restored_blocks"]
    return {
        "index": rows["index"],
        "seq": np.arange(len(rows["index"])),
        "ordinal": rows["ordinal"],
        "pass_index": rows["pass_index"],
        "time_ns": start_ns[rows["pass_index"]],
        "cached_tokens": found * config.block_size,
        "hit_blocks": rows["hit_blocks"],
        "is_readmission": rows["ordinal"] > 0,
        "waiting_ahead": np.zeros(len(rows["index"]), np.int64),
        **more,
    }


def _batches(
    log: Log, chunks: Columns, admissions: Columns, growth: Growth, verified: Verified | None, facts: Columns
) -> Columns:
    """What was in each pass: prefill and decode work, tokens sampled, requests running, blocks used."""
    num_passes = len(log.starts)
    segments = flat(("first", "decodes", "context", "squares", "used", "running"), log.segments)
    first = segments["first"]
    segment = np.repeat(np.arange(len(first)), np.diff(first, append=num_passes))
    step = np.arange(num_passes, dtype=np.int64) - first[segment]
    decodes, context = segments["decodes"][segment], segments["context"][segment]
    squares = segments["squares"][segment]
    if verified is None:
        squares += step * (2 * context + decodes * step)
        context += decodes * step
        outputs = decodes.copy()
    else:
        context = add_up(verified.pass_index, verified.before, num_passes)
        squares = add_up(verified.pass_index, verified.before * verified.before, num_passes)
        outputs = add_up(verified.pass_index, verified.sampled, num_passes)
    openings = growth.opened_in(num_passes)
    opened = np.cumsum(openings)
    used = segments["used"][segment] + opened - (opened - openings)[first[segment]]

    before, tokens, known = chunks["computed_before"], chunks["scheduled_tokens"], chunks["known"]
    completes = before + tokens == known
    outputs += add_up(chunks["pass_index"][completes], 1, num_passes)
    # The last token of a request that was resumed in an earlier pass counts as a decode, and the first of who joined.
    odd = (tokens == 1) & (before == known - 1) & (known > facts["prompt_tokens"][chunks["index"]])
    odd &= (chunks["pass_index"] != admissions["pass_index"][chunks["seq"]]) | chunks["joined"]
    at = chunks["pass_index"][odd]
    decodes += add_up(at, 1, num_passes)
    context += add_up(at, before[odd], num_passes)
    squares += add_up(at, before[odd] * before[odd], num_passes)

    prefill = ~odd
    at, known = chunks["pass_index"][prefill], known[prefill]
    prefills = add_up(at, 1, num_passes)
    known_sum, known_squares = add_up(at, known, num_passes), add_up(at, known * known, num_passes)
    return {
        "num_prefill_requests": prefills,
        "sum_prefill_tokens": add_up(at, tokens[prefill], num_passes),
        "var_prefill_length": population_variance(prefills, known_sum, known_squares),
        "sum_prefill_kv_tokens": add_up(at, before[prefill], num_passes),
        "num_decode_requests": decodes,
        "sum_decode_kv_tokens": context,
        "var_decode_kv_tokens": population_variance(decodes, context, squares),
        "num_output_tokens": outputs,
        "kv_blocks_used": used,
        "num_running": segments["running"][segment],
    }


def _queues(facts: Columns, admissions: Columns, preemptions: Columns, num_passes: int) -> Columns:
    """Who waited after each pass was scheduled: requests join the queue when received or preempted, until admitted."""
    never = np.where(facts["aborted_in"] >= 0, facts["aborted_in"], num_passes)
    never = np.where(facts["gone_in"] >= 0, facts["gone_in"], never)
    received = np.flatnonzero(facts["received_in"] >= 0)
    admitted = never.copy()
    is_first = admissions["ordinal"] == 0
    admitted[admissions["index"][is_first]] = admissions["pass_index"][is_first]
    fresh = _waiting(facts["received_in"][received], admitted[received], facts["prompt_tokens"][received], num_passes)

    # The k-th preemption of a request is followed by its admission with ordinal k, if by any.
    width = int(admissions["ordinal"].max(initial=0)) + 2
    order = np.argsort(preemptions["index"], kind="stable")
    index = preemptions["index"][order]
    ordinal = np.arange(len(index)) - np.searchsorted(index, index) + 1
    resumed = admissions["index"] * width + admissions["ordinal"]
    by_request = np.argsort(resumed)
    place = np.searchsorted(resumed[by_request], index * width + ordinal)
    place = by_request[np.minimum(place, len(by_request) - 1)] if len(index) else place
    is_resumed = resumed[place] == index * width + ordinal
    until = np.where(is_resumed, admissions["pass_index"][place], never[index])
    again = _waiting(preemptions["pass_index"][order], until, preemptions["known"][order], num_passes)
    return {
        "queued_num_prefill_requests": fresh[0],
        "queued_sum_prefill_tokens": fresh[1],
        "queued_var_prefill_length": population_variance(*fresh),
        "queued_num_decode_requests": again[0],
        "queued_sum_decode_kv_tokens": again[1],
        "queued_var_decode_kv_tokens": population_variance(*again),
        "num_waiting": fresh[0] + again[0],
        "num_preempted": add_up(preemptions["pass_index"], 1, num_passes + 1)[:num_passes],
    }


def _waiting(since: Ints, until: Ints, tokens: Ints, num_passes: int) -> tuple[Ints, Ints, Ints]:
    """Count, sum and sum of squares over those that wait in each pass, ``until`` excluded."""

    def sums(weight: Ints | int) -> Ints:
        change = add_up(since, weight, num_passes + 1) - add_up(until, weight, num_passes + 1)
        return np.cumsum(change)[:num_passes]

    return sums(1), sums(tokens), sums(tokens * tokens)


def _cached(log: Log, pool: RunPool, config: ServerConfig, chunks: Columns, reserves: Columns, growth: Growth) -> Ints:
    """Distinct content held after each pass was scheduled: what was registered less what was evicted."""
    num_passes = len(log.starts)
    if not config.prefix_caching:
        return np.zeros(num_passes, np.int64)
    size, at = config.block_size, chunks["pass_index"]
    before, after = chunks["computed_before"], chunks["computed_before"] + chunks["scheduled_tokens"]
    restored = chunks["restored"]
    taken = ceil_div(after, size) - ceil_div(before, size) + restored - chunks["prepaid"]
    reserved = add_up(reserves["pass_index"], reserves["count"], num_passes + 1)[:num_passes]
    taken_by = np.cumsum(growth.opened_in(num_passes) + add_up(at, taken, num_passes) + reserved)
    copies = flat(("pass_index", "blocks"), log.copies)
    registered = growth.filled_in(num_passes) + add_up(at, after // size - before // size + restored, num_passes)
    cached = np.cumsum(registered - add_up(copies["pass_index"], copies["blocks"], num_passes))

    evictions = flat(("taken", "blocks"), pool.evictions)
    if len(evictions["taken"]):
        row = np.searchsorted(evictions["taken"], taken_by, side="left") - 1  # the last that began before
        begun = np.concatenate(([0], np.cumsum(evictions["blocks"])))
        within = np.minimum(taken_by - evictions["taken"][row], evictions["blocks"][row])
        cached -= np.where(row >= 0, begun[row] + within, 0)
        cached += np.searchsorted(np.array(pool.kept, np.int64), taken_by, side="left")
    return cached


def _requests(
    facts: Columns, admissions: Columns, preemptions: Columns, stretches: Columns, verified: Verified | None
) -> Columns:
    """One row per index; one that was never received has -1 everywhere but in its counts."""
    count = len(facts["received_ns"])
    first = {name: np.full(count, -1, np.int64) for name in ("time_ns", "pass_index", "cached_tokens")}
    is_first = admissions["ordinal"] == 0
    for name, column in first.items():
        column[admissions["index"][is_first]] = admissions[name][is_first]
    # Stretches come in the order of their first pass: the first of a request is written last here, the last likewise.
    first_token, last_token = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    first_token[stretches["index"][::-1]] = stretches["first_pass"][::-1]
    last_token[stretches["index"]] = stretches["last_pass"]
    sampled = stretches["last_pass"] - stretches["first_pass"] + 1
    if verified is not None:
        sampled = 1 + add_up(verified.row, verified.sampled, len(sampled))
    return {
        "received_ns": facts["received_ns"],
        "first_admit_ns": first["time_ns"],
        "first_admit_pass": first["pass_index"],
        "cached_tokens": first["cached_tokens"],
        "recomputed_tokens": facts["recomputed_tokens"],
        "preemptions": add_up(preemptions["index"], 1, count),
        "output_tokens": add_up(stretches["index"], sampled, count),
        "first_token_pass": first_token,
        "last_token_pass": last_token,
        "aborted": facts["aborted_in"] >= 0,
    }
