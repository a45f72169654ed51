"""A recording of three requests, small enough to follow by hand, written with the standard library alone.

Blocks hold 4 tokens, a pass 8 new tokens at most; warm-up lasts 1 s, the profile 1 s. ``A`` (9 prompt tokens) has two
outputs; then its child ``B``, a fork, and its next turn ``C`` are sent. ``C`` is preempted, resumes and is canceled.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

SYSTEM = [1, 2, 3, 4, 5, 6]
PROMPT_A = [*SYSTEM, 11, 12, 13]
PROMPT_B = [*PROMPT_A, 101, 102, 21]
PROMPT_C = [*PROMPT_A, 101, 102, 31, 32]
HASHES = ["f000000000000001", "f000000000000002", "f00000000000000b", "f00000000000000c"]


def trace_rows() -> list[dict[str, Any]]:
    def turn(number: int, ids: list[int], outputs: int, spawn: tuple[str, ...] = ()) -> dict[str, Any]:
        return {
            "turn": number,
            "input_tokens": len(ids),
            "input_ids": ids,
            "output_tokens": outputs,
            "think_s": 0.25,
            "spawn": list(spawn),
        }

    child = {"session_id": "r", "after_turn": 0, "mode": "fork"}
    return [
        {"kind": "meta", "schema": "agentic-trace/1", "seed": 7},
        {"kind": "system", "system": "sys", "tokens": 6, "ids": SYSTEM},
        {
            "kind": "session",
            "session_id": "r",
            "role": "root",
            "system": "sys",
            "parent": None,
            "turns": [turn(0, [11, 12, 13], 2, ("r.c",)), turn(1, [31, 32], 3), turn(2, [41], 1)],
        },
        {
            "kind": "session",
            "session_id": "r.c",
            "role": "child",
            "system": None,
            "parent": child,
            "turns": [turn(0, [21], 1)],
        },
    ]


def request_rows() -> list[dict[str, Any]]:
    def request(name: str, session: str, turn: int, prompt: list[int], at: float, **more: Any) -> dict[str, Any]:
        digest = hashlib.sha256(",".join(map(str, prompt)).encode()).hexdigest()[:16]
        return {
            "request_id": name,
            "session_id": session,
            "root_session_id": "r",
            "turn": turn,
            "lane": 0,
            "phase": "warmup" if at < 1 else "profile",
            "status": "ok",
            "error": None,
            "scheduled_s": at - 0.001,
            "dispatch_s": at,
            "input_tokens": len(prompt),
            "prompt_sha256_16": digest,
            **more,
        }

    return [
        request(
            "A", "r", 0, PROMPT_A, 0.5, first_visible_s=0.75, last_visible_s=0.85, end_s=0.851, cached_tokens=0,
            output_tokens_requested=2, output_tokens=2, output_ids=[101, 102], chunks=[[250000, 1, 1], [350000, 1, 1]],
        ),
        request(
            "B", "r.c", 0, PROMPT_B, 1.2, first_visible_s=1.35, last_visible_s=1.35, end_s=1.351, cached_tokens=8,
            output_tokens_requested=1, output_tokens=1, output_ids=[103], chunks=[[150000, 1, 1]],
        ),
        request(
            "C", "r", 1, PROMPT_C, 1.5, first_visible_s=1.65, last_visible_s=1.65, end_s=2.1, cached_tokens=None,
            output_tokens_requested=3, output_tokens=1, output_ids=[104], chunks=[[150000, 1, 1]], status="canceled",
        ),
    ]  # fmt: skip


def pass_rows() -> list[dict[str, Any]]:
    def call(number: int, start: float, members: list[list[Any]], **more: Any) -> dict[str, Any]:
        prefill = [m for m in members if m[3] != "d"]
        decode = [m for m in members if m[3] == "d"]
        return {
            "kind": "iter" if members else "empty",
            "iter": number,
            "engine_iter": 40 + number,
            "t_start_s": start,
            "t_sched_end_s": start + 0.001,
            "t_output_s": start + 0.089,
            "t_end_s": start + 0.09,
            "wall_time_s": 0.09,
            "period_s": None,
            "worker_runq_wait_s": 0.001,
            "num_prefill": len(prefill),
            "prefill_tokens": sum(m[2] for m in prefill),
            "prefill_ctx_tokens": sum(m[1] for m in prefill),
            "var_prefill_length": 0.0,
            "num_decode": len(decode),
            "decode_kv_tokens": sum(m[1] for m in decode),
            "var_decode_kv_tokens": 0.0,
            "running": len(members),
            "waiting": 0,
            "queued_prefill": 0,
            "queued_prefill_tokens": 0,
            "queued_preempted": 0,
            "queued_preempted_tokens": 0,
            "preempted": [],
            "kv_blocks_used": 3,
            "kv_blocks_total": 9,
            "kv_blocks_cached": 2,
            "kv_stored": 0,
            "kv_removed": 0,
            "reqs": members,
            "arrivals": [],
            "finished": [],
            "finished_before": [],
            **more,
        }

    return [
        call(0, 0.51, [["A", 0, 8, "n"]], arrivals=[["A", 0.505, 9, 2]], kv_stored=2),
        call(1, 0.61, [["A", 8, 1, "c"]]),
        call(2, 0.71, [["A", 9, 1, "d"]], finished=[["A", "FINISHED_LENGTH_CAPPED", 10, 2, 0, 0.8]]),
        call(3, 1.21, [["B", 8, 4, "n"]], arrivals=[["B", 1.205, 12, 1]], kv_stored=1,
             finished=[["B", "FINISHED_LENGTH_CAPPED", 12, 1, 0, 1.3]]),
        call(4, 1.51, [["C", 8, 5, "n"]], arrivals=[["C", 1.505, 13, 3]], kv_stored=1),
        call(5, 1.61, [], preempted=["C"], queued_preempted=1, queued_preempted_tokens=14, waiting=1),
        call(6, 1.95, [["C", 8, 6, "r"]], kv_stored=1, kv_removed=1),
        call(7, 2.15, [], finished_before=[["C", "FINISHED_ABORTED", 14, 2, 1, 2.12]]),
    ]  # fmt: skip


def event_rows() -> list[dict[str, Any]]:
    def stored(
        number: int, at: float, request: str, hashes: list[str], parent: str | None, ids: list[int]
    ) -> dict[str, Any]:
        return {
            "t_s": at, "seq": number, "n": 1, "iter": number, "type": "BlockStored", "request_id": request,
            "hashes": hashes, "parent": parent, "block_size": 4, "token_ids": ids,
        }  # fmt: skip

    return [
        {"t_s": 0.599, "seq": 0, "n": 0, "iter": 0, "type": "AllBlocksCleared"},
        stored(0, 0.599, "A", HASHES[:2], None, PROMPT_A[:8]),
        stored(3, 1.299, "B", HASHES[2:3], HASHES[1], PROMPT_B[8:12]),
        stored(4, 1.599, "C", HASHES[3:], HASHES[1], PROMPT_C[8:12]),
        {"t_s": 2.039, "seq": 6, "n": 0, "iter": 6, "type": "BlockRemoved", "hashes": HASHES[2:3]},
        stored(6, 2.039, "C", HASHES[3:], HASHES[1], PROMPT_C[8:12]),
    ]


def identity(trace_digest: str) -> dict[str, Any]:
    return {
        "schema": "measured-run-identity/1",
        "run": "tiny",
        "engine": {
            "name": "vllm",
            "version": "9.9",
            "dtype": "float32",
            "non_default_args": "{'host': '10.1.2.3', 'port': 4711, 'model': '/models/tiny', 'max_num_seqs': 2, "
            "'enforce_eager': True, 'dtype': 'float32', 'cfg': Config(endpoint='tcp://10.1.2.3:4712', steps=3)}",
        },
        "os": "Linux 1.2.3",
        "scheduler": {"block_size": 4, "num_kv_blocks": 10, "num_usable_kv_blocks": 9, "max_num_batched_tokens": 8},
        "workload": {"trace": "trace.jsonl", "trace_sha256": trace_digest, "lanes": 1, "lane_stagger_s": 0.25},
        "phases": {"warmup_s": 1.0, "duration_s": 1.0, "grace_s": 0.1},
        "end": {"t_stop_s": 2.0, "t_cancel_s": 2.1, "t_end_s": 2.11},
    }


class Folder:
    """The recording's files as rows that a test may change before writing them."""

    def __init__(self) -> None:
        self.trace = trace_rows()
        self.requests = request_rows()
        self.passes: list[dict[str, Any]] = [{"kind": "meta", "schema": "fpm/1"}, *pass_rows()]
        self.events = event_rows()
        self.identity = identity("")

    def write(self, path: Path) -> Path:
        """Write everything into ``path`` and return it."""
        path.mkdir(parents=True, exist_ok=True)
        trace = lines(self.trace)
        (path / "trace.jsonl").write_bytes(trace)
        self.identity["workload"]["trace_sha256"] = hashlib.sha256(trace).hexdigest()
        (path / "requests.jsonl").write_bytes(lines(self.requests))
        (path / "fpm.jsonl.gz").write_bytes(gzip.compress(lines(self.passes), mtime=0))
        (path / "kv_events.jsonl.gz").write_bytes(gzip.compress(lines(self.events), mtime=0))
        (path / "identity.json").write_text(json.dumps(self.identity))
        return path


def lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def write_sweep(path: Path) -> Path:
    """A sweep of two shapes: one prefill pass, and two decode passes after their prefill."""
    path.mkdir(parents=True)
    members = [[["p", 0, 4, "n"]], [["d", 4, 1, "n"]], [["d", 5, 1, "d"]], [["d", 6, 1, "d"]]]
    rows: list[dict[str, Any]] = [{"kind": "meta", "schema": "fpm/1"}]
    for number, (row, batch) in enumerate(zip(pass_rows(), members, strict=False)):
        decode = batch[0][3] == "d"
        row |= {"reqs": batch, "shape_id": int(number > 0), "num_decode": int(decode), "num_prefill": int(not decode)}
        row |= {"prefill_tokens": 0 if decode else batch[0][2], "wall_time_s": 0.01 * (number + 1)}
        rows.append({k: v for k, v in row.items() if k not in ("arrivals", "finished", "finished_before")})
    shapes = [
        {"shape_id": 0, "shape": "prefill", "new": 4, "ctx": 0, "step_ms": {"n": 1, "mean": 10.0}},
        {"shape_id": 1, "shape": "decode", "batch": 1, "ctx": 4, "step_ms": {"n": 2, "mean": 35.0}},
    ]
    (path / "fpm.jsonl.gz").write_bytes(gzip.compress(lines(rows), mtime=0))
    (path / "shapes.jsonl").write_bytes(lines(shapes))
    record = {"schema": "measured-fpm-sweep-identity/1", "engine": {"name": "vllm"}, "scheduler": {"block_size": 4}}
    (path / "identity.json").write_text(json.dumps(record))
    return path
