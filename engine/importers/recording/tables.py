"""The tables of a measured run that come from the client and the passes: requests, chunks, passes, admissions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from engine.bundle.schema import TABLES
from engine.importers.recording.content import Contents, play_id, primes
from engine.importers.recording.files import Recording
from engine.importers.recording.history import History

Rows = list[dict[str, Any]]


def table_of(name: str, rows: Rows) -> pa.Table:
    """Rows as a table of the bundle, sorted as the bundle wants it; only columns that some row has."""
    kind = TABLES[name]
    used = [c for c in kind.columns if not rows or c in rows[0] or any(c in row for row in rows)]
    rows = sorted(rows, key=lambda row: tuple((row[c] is None, row[c]) for c in kind.sorted_by))
    plain = [pa.field(c, _undictionaried(kind.schema.field(c).type)) for c in used]
    return pa.Table.from_pylist(rows, pa.schema(plain))


def _undictionaried(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def request_rows(recording: Recording, seen: Mapping[str, History], contents: Contents) -> Rows:
    """One row per request of the client, with what the engine says about it."""
    by_turn = {(play_id(r), r["session_id"], r["turn"]): r["request_id"] for r in recording.requests if not primes(r)}
    talks = {t.conversation_id: t for play in contents.trace.plays for t in play.conversations}
    rows = []
    for r in recording.requests:
        served = r["request_id"] in seen
        history = seen.get(r["request_id"], History())
        content = contents.by_request.get(r["request_id"])
        talk = talks.get(r["session_id"])
        first = history.admissions[0] if history.admissions else None
        dispatched = recording.ns(r["dispatch_s"])
        spawned_by = None
        if talk is not None and talk.parent is not None and talk.after_turn is not None:
            spawned_by = by_turn.get((play_id(r), talk.parent, talk.after_turn))
        error = r["error"]
        cached = r["cached_tokens"]
        if cached is None and first is not None:  # the client learns it only from a complete response
            cached = first.cached_tokens
        rows.append(
            {
                "request_id": r["request_id"],
                "source_trace_id": r["root_session_id"],
                "conversation_id": r["session_id"],
                "turn_index": r["turn"],
                "play_id": play_id(r),
                "lane": r["lane"],
                "parent_request_id": spawned_by,
                "agent_depth": None if talk is None else talk.depth,
                "phase": "primer" if r["phase"] == "primer" else "warmup" if dispatched < 0 else "profile",
                "status": r["status"],
                "error_type": None if error is None else error.split(":")[0][:80],
                "error_message": error,
                "scheduled_ns": recording.ns(r["scheduled_s"]),
                "dispatched_ns": dispatched,
                "received_ns": recording.maybe_ns(history.received_s),
                "first_admit_ns": None if first is None else recording.ns(first.time_s),
                "first_visible_ns": recording.maybe_ns(r["first_visible_s"]),
                "last_visible_ns": recording.maybe_ns(r["last_visible_s"]),
                "end_ns": recording.ns(r["end_s"]),
                "released_ns": recording.maybe_ns(history.released_s),
                "input_tokens": r["input_tokens"],
                "requested_output_tokens": r["output_tokens_requested"],
                "output_tokens": r["output_tokens"],
                "cached_tokens": cached,
                "recomputed_tokens": history.recomputed_tokens if served else None,
                "preemptions": len(history.preemptions) if served else None,
                "prompt_block_hashes": None if content is None else content.prompt,
                "output_block_hashes": None if content is None else content.outputs,
            }
        )
    return rows


def chunk_rows(recording: Recording) -> Rows:
    """One row per chunk that reached the client."""
    return [
        {
            "request_id": r["request_id"],
            "ordinal": ordinal,
            "time_ns": recording.ns(r["dispatch_s"]) + 1000 * after_us,
            "tokens": tokens,
            "visible": bool(visible),
        }
        for r in recording.requests
        for ordinal, (after_us, tokens, visible) in enumerate(r["chunks"])
    ]


def pass_rows(recording: Recording, sampled: Sequence[int | None], phase_at: Any) -> Rows:
    """One row per scheduler call; ``phase_at`` gives the phase of a start time in nanoseconds.

    Calls that scheduled nothing keep their times and have all counts 0. A variance over no request is NULL.
    """
    rows = []
    for r, tokens in zip(recording.passes, sampled, strict=True):
        start, end = recording.ns(r["t_start_s"]), recording.ns(r["t_end_s"])
        rows.append(
            {
                "pass_index": r["iter"],
                "phase": phase_at(start),
                "start_ns": start,
                "end_ns": end,
                "duration_ns": round(r["wall_time_s"] * 1e9),
                "num_prefill_requests": r["num_prefill"],
                "sum_prefill_tokens": r["prefill_tokens"],
                "var_prefill_length": float(r["var_prefill_length"]) if r["num_prefill"] else None,
                "sum_prefill_kv_tokens": r["prefill_ctx_tokens"],
                "num_decode_requests": r["num_decode"],
                "sum_decode_kv_tokens": r["decode_kv_tokens"],
                "var_decode_kv_tokens": float(r["var_decode_kv_tokens"]) if r["num_decode"] else None,
                "queued_num_prefill_requests": r["queued_prefill"],
                "queued_sum_prefill_tokens": r["queued_prefill_tokens"],
                "queued_num_decode_requests": r["queued_preempted"],
                "queued_sum_decode_kv_tokens": r["queued_preempted_tokens"],
                "num_output_tokens": tokens,
                "kv_blocks_used": r["kv_blocks_used"],
                "kv_blocks_cached": r["kv_blocks_cached"],
                "kv_blocks_total": r["kv_blocks_total"],
                "num_running": r["running"],
                "num_waiting": r["waiting"],
                "num_preempted": len(r["preempted"]),
                "schedule_ns": recording.ns(r["t_sched_end_s"]) - start,
                "period_ns": None if r["period_s"] is None else round(r["period_s"] * 1e9),
                "contention_ns": None if r["worker_runq_wait_s"] is None else round(r["worker_runq_wait_s"] * 1e9),
                "members": [
                    {"request_id": name, "computed_before": before, "scheduled_tokens": tokens}
                    for name, before, tokens, _kind in r["reqs"]
                ],
            }
        )
    return rows


def admission_rows(recording: Recording, seen: Mapping[str, History]) -> Rows:
    """One row per admission, first and again."""
    size = recording.block_size
    assert size is not None  # passes come with the settings of their scheduler
    return [
        {
            "request_id": name,
            "ordinal": ordinal,
            "time_ns": recording.ns(a.time_s),
            "pass_index": a.pass_index,
            "cached_tokens": a.cached_tokens,
            "hit_blocks": a.cached_tokens // size,
            "is_readmission": a.again,
        }
        for name, history in seen.items()
        for ordinal, a in enumerate(history.admissions)
    ]
