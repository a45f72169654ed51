"""A small store of made-up runs: lanes that take turns, passes with known members, blocks that are reused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from engine.bundle import BundleWriter, Check, Phase, replay_lineage
from engine.bundle.schema import TABLES
from engine.identity import Identity

MS = 1_000_000
LANES, TURNS, BLOCK = 4, 8, 32


def identity(**changes: Any) -> Identity:
    record = Identity()
    facts = {
        ("source", "engine"): "vllm",
        ("source", "version"): "0.32.0",
        ("model", "name"): "toy",
        ("hardware", "part"): "CPU",
        ("trace", "digest"): "50853bd0473a",
        ("capacity", "kv_blocks"): 512,
        ("capacity", "block_size"): BLOCK,
        ("scheduler", "max_num_seqs"): 16,
        ("scheduler", "max_num_batched_tokens"): 512,
        ("client", "lanes"): LANES,
    }
    facts |= {tuple(name.split("__")): value for name, value in changes.items()}  # type: ignore[misc]
    for (group, field), value in facts.items():
        record.set(group, field, value, "made up")
    return record


def rows(speed: float, start: int = -400 * MS) -> dict[str, list[dict[str, Any]]]:
    """Rows of every table; ``speed`` stretches the pass durations, a first dispatch at 0 leaves no warm-up."""
    requests, passes, events, admissions, chunks = [], [], [], [], []
    for lane in range(LANES):
        time = lane * 50 * MS + start
        for turn in range(TURNS):
            request_id = f"r{lane}-{turn}"
            context = 320 + 96 * turn
            cached = 0 if turn == 0 else (context - 1) // BLOCK * BLOCK - 64
            outputs = 1 + 3 * ((lane + turn) % 5)
            dispatched = time
            first = dispatched + int((60 + 15 * (turn % 3)) * MS * speed)
            last = first + int((outputs - 1) * 20 * MS * speed)
            canceled = lane == LANES - 1 and turn == TURNS - 1
            requests.append(
                {
                    "request_id": request_id,
                    "source_trace_id": f"s{lane}",
                    "conversation_id": f"c{lane}",
                    "turn_index": turn,
                    "play_id": f"p{lane}",
                    "lane": lane,
                    "agent_depth": 0,
                    "phase": "warmup" if dispatched < 0 else "profile",
                    "status": "canceled" if canceled else "ok",
                    "scheduled_ns": dispatched - 2 * MS,
                    "dispatched_ns": dispatched,
                    "received_ns": dispatched + 10 * MS,
                    "first_admit_ns": dispatched + 11 * MS,
                    "first_visible_ns": None if canceled else first,
                    "last_visible_ns": None if canceled else last,
                    "end_ns": last + MS,
                    "input_tokens": context,
                    "requested_output_tokens": outputs,
                    "output_tokens": 0 if canceled else outputs,
                    "cached_tokens": None if canceled else cached,
                    "recomputed_tokens": 0,
                    "preemptions": 0,
                }
            )
            admissions.append(
                {
                    "request_id": request_id,
                    "ordinal": 0,
                    "time_ns": dispatched + 11 * MS,
                    "cached_tokens": cached,
                    "hit_blocks": cached // BLOCK,
                    "is_readmission": False,
                    "waiting_ahead": 0,
                }
            )
            for kind, at, blocks in (("hit", 11, cached // BLOCK), ("store", 12, (context - cached) // BLOCK)):
                if blocks:
                    hashes = [1000 * lane + block for block in range(blocks)]
                    events.append(
                        {
                            "time_ns": dispatched + at * MS,
                            "kind": kind,
                            "request_id": request_id,
                            "num_blocks": blocks,
                            "block_hashes": hashes,
                        }
                    )
            if not canceled:
                for token in range(outputs):
                    chunks.append(
                        {
                            "request_id": request_id,
                            "ordinal": token,
                            "time_ns": first + int(token * 20 * MS * speed),
                            "tokens": 1,
                            "visible": True,
                        }
                    )
            prefills = [(dispatched + 11 * MS, context - cached, cached)]
            decodes = [(first + int(k * 20 * MS * speed), context + k) for k in range(outputs - 1)]
            for start, new, read in prefills:
                passes.append(_pass(start, int(40 * MS * speed), request_id, new, read, 1 if turn % 2 else 0, context))
            for start, kv in decodes:
                passes.append(_pass(start, int(18 * MS * speed), request_id, 0, 0, 1, kv))
            time = last + 80 * MS
    passes.sort(key=lambda row: row["start_ns"])
    for index, row in enumerate(passes):
        row["pass_index"] = index
    events.sort(key=lambda row: row["time_ns"])
    for index, row in enumerate(events):
        row["event_index"] = index
    return {
        "requests": requests,
        "passes": passes,
        "kv_events": events,
        "admissions": sorted(admissions, key=lambda row: (row["time_ns"], row["request_id"])),
        "chunks": sorted(chunks, key=lambda row: (row["time_ns"], row["request_id"], row["ordinal"])),
    }


def _pass(start: int, duration: int, request_id: str, new: int, read: int, decodes: int, kv: int) -> dict[str, Any]:
    return {
        "phase": "warmup" if start < 0 else "profile",
        "start_ns": start,
        "end_ns": start + duration,
        "duration_ns": duration,
        "num_prefill_requests": 1 if new else 0,
        "sum_prefill_tokens": new,
        "sum_prefill_kv_tokens": read,
        "num_decode_requests": decodes,
        "sum_decode_kv_tokens": kv if decodes else 0,
        "kv_blocks_used": 40 + kv // BLOCK,
        "kv_blocks_cached": 90 + kv // BLOCK,
        "kv_blocks_total": 511,
        "num_running": 1,
        "num_waiting": 0,
        "members": [{"request_id": request_id, "computed_before": read if new else kv, "scheduled_tokens": new or 1}],
    }


def _on(rank: int, ranks: int, row: dict[str, Any]) -> dict[str, Any]:
    index, longer = row["pass_index"] * ranks + rank, row["duration_ns"] + rank * MS
    return row | {"pass_index": index, "step": row["pass_index"], "dp_rank": rank, "duration_ns": longer}


COVERAGE = [
    {
        "class": kind,
        "prefill_requests": 0 if kind == "decode_only" else 1,
        "new_tokens": 0 if kind == "decode_only" else 128 * (step + 1),
        "prefill_kv_tokens": 64 * step,
        "decode_requests": 0 if kind == "prefill_only" else 1,
        "decode_kv_tokens": 0 if kind == "prefill_only" else 320 * (step + 1),
        "resolution": "clamped" if step == 3 else "interpolated",
        "source": "fpm",
        "count": 10 - step,
        "modelled_ns": (10 - step) * 20 * MS,
        "sites": "",
    }
    for kind in ("decode_only", "mixed", "prefill_only")
    for step in range(4)
]


def write(
    store: Path,
    kind: str,
    slug: str,
    *,
    speed: float = 1.0,
    tables: tuple[str, ...] = ("requests", "passes", "kv_events", "admissions", "chunks"),
    failed: bool = False,
    start: int = -400 * MS,
    title: str = "",
    without: tuple[str, ...] = (),
    ranks: int = 1,
    **changes: Any,
) -> str:
    """One run; returns its id."""
    data = rows(speed, start)
    data["requests"] = [row for row in data["requests"] if row["request_id"] not in without]
    if ranks > 1:  # in lockstep: each further rank takes 1 ms more
        data["passes"] = [_on(rank, ranks, row) for row in data["passes"] for rank in range(ranks)]
    if kind == "replay":
        data["coverage"] = COVERAGE
        tables = (*tables, "coverage")
        for row in data["passes"]:
            row["resolution"] = "clamped" if row["num_prefill_requests"] else "interpolated"
    lineage = replay_lineage([], {}, {}, []) if kind == "replay" else {}
    with BundleWriter(store, kind, slug, title or f"{slug} (made up)", identity(**changes)) as writer:
        for name in tables:
            schema = TABLES[name].schema
            columns = {field.name: [row.get(field.name) for row in data[name]] for field in schema}
            writer.write_table(name, pa.table(columns, schema=schema))
        end = max(row["end_ns"] for row in data["requests"])
        return writer.seal(
            phases=[Phase("warmup", start, 0), Phase("profile", 0, end), Phase("grace", end, end + 100 * MS)],
            lineage=lineage,
            qualification=[Check("ledger", "fail" if failed else "pass", "made up")],
            never_issued=0,
        )


def pair(store: Path) -> tuple[str, str]:
    """A measured run and a replay of it that is a tenth slower."""
    return write(store, "measured", "ample8"), write(store, "replay", "ample8-replay", speed=1.1)
