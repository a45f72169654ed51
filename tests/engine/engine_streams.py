"""A client's run and the passes of its engine, made up so that their clocks are known to each other."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from bundle_rows import identity, table

from engine.bundle import Bundle, BundleWriter, Phase, open_bundle

MS = 1_000_000
S = 1_000 * MS
EPOCH_S = 1_795_985_515
"""Profile start on the client's wall clock."""
PHASES = [Phase("warmup", -10 * S, 0), Phase("profile", 0, 100 * S)]
META = {
    "kind": "meta",
    "schema": "vllm-cpu-fpm/1",
    "max_num_seqs": 16,
    "max_num_batched_tokens": 512,
    "block_size": 32,
}


def client_run(store: Path, rows: list[dict[str, Any]], epoch: bool = True, **seal: Any) -> Bundle:
    """A measured run of these requests."""
    with BundleWriter(store, "measured", "client", "A client", identity()) as writer:
        writer.write_table("requests", table("requests", rows))
        options = {"phases": PHASES, "profile_start_unix_ns": EPOCH_S * S if epoch else None, **seal}
        return open_bundle(store / writer.seal(**options))


def exchange(
    count: int = 4, way_in: list[int] | None = None, way_out: list[int] | None = None, skew_ns: int = 0
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Requests of a client, and the rows of the passes that served them one after the other, one second apart.

    A prompt of 40 tokens, 8 of them cached, is computed in two passes of 16 tokens and 10 ms; two more passes make the
    second and third token. The ways to the engine and back take ``way_in`` and ``way_out``; the engine's clock is
    ``skew_ns`` ahead. All on whole microseconds.
    """
    requests, passes = [], []
    for k in range(count):
        sent = k * S
        start = sent + (way_in[k] if way_in else 2 * MS)
        out = way_out[k] if way_out else 3 * MS
        requests.append(
            {
                "request_id": f"r{k}",
                "phase": "profile",
                "status": "ok",
                "dispatched_ns": sent,
                "first_visible_ns": start + 20 * MS + out,
                "last_visible_ns": start + 40 * MS + out,
                "end_ns": start + 40 * MS + out,
                "input_tokens": 40,
                "output_tokens": 3,
            }
        )
        name = f"chatcmpl-r{k}"
        for j, (before, tokens, kind) in enumerate([(8, 16, "n"), (24, 16, "c"), (40, 1, "d"), (41, 1, "d")]):
            passes.append(call(4 * k + j, start + skew_ns + 10 * MS * j, [[name, before, tokens, kind]]))
        passes[-4]["arrivals"] = [[name, seconds(start + skew_ns), 40, 3]]
        passes[-1]["finished"] = [[name, "FINISHED_LENGTH_CAPPED", 42, 3, 0, seconds(start + skew_ns + 40 * MS)]]
    return requests, passes


def seconds(ns: int) -> float:
    """A time on the engine's wall clock, to the microsecond."""
    return EPOCH_S + round(ns / 1000) / 1e6


def call(number: int, start_ns: int, members: list[list[Any]]) -> dict[str, Any]:
    """A call of the scheduler that takes 10 ms."""
    prefills = [m for m in members if m[3] != "d"]
    return {
        "kind": "iter",
        "iter": number,
        "engine_iter": number,
        "t_start_epoch_s": seconds(start_ns),
        "t_sched_end_epoch_s": seconds(start_ns),
        "t_end_epoch_s": seconds(start_ns + 10 * MS),
        "wall_time_s": 0.01,
        "period_s": None,
        "worker_runq_wait_s": None,
        "num_prefill": len(prefills),
        "prefill_tokens": sum(m[2] for m in prefills),
        "prefill_ctx_tokens": sum(m[1] for m in prefills),
        "var_prefill_length": 0.0,
        "num_decode": len(members) - len(prefills),
        "decode_kv_tokens": sum(m[1] for m in members if m[3] == "d"),
        "var_decode_kv_tokens": 0.0,
        "running": 1,
        "waiting": 0,
        "queued_prefill": 0,
        "queued_prefill_tokens": 0,
        "queued_preempted": 0,
        "queued_preempted_tokens": 0,
        "preempted": [],
        "kv_blocks_used": 2,
        "kv_blocks_total": 100,
        "kv_blocks_cached": 0,
        "kv_stored": 0,
        "kv_removed": 0,
        "reqs": members,
        "arrivals": [],
        "finished": [],
        "finished_before": [],
    }


def relative(rows: list[dict[str, Any]], start_s: float = 1000.0) -> list[dict[str, Any]]:
    """The same rows on a clock that is no wall clock."""

    def moved(value: float) -> float:
        return round(value - EPOCH_S + start_s, 6)

    return [
        {
            **{name: value for name, value in row.items() if "epoch" not in name},
            **{name.replace("_epoch", ""): moved(row[name]) for name in row if "epoch" in name},
            "arrivals": [[name, moved(at), *rest] for name, at, *rest in row["arrivals"]],
            "finished": [[*rest, moved(at)] for *rest, at in row["finished"]],
        }
        for row in rows
    ]


def write_stream(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The rows as a compressed stream of passes."""
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in (META, *rows))
    return path


def stream_run(store: Path, slug: str = "stream", start_unix_ns: int | None = EPOCH_S * S, **tables: Any) -> Bundle:
    """What the import of a stream leaves: a run with passes or KV events alone."""
    kind = "sweep" if "passes" in tables else "imported_summary"
    with BundleWriter(store, kind, slug, "A stream", identity()) as writer:
        for name, rows in tables.items():
            writer.write_table(name, table(name, rows))
        return open_bundle(store / writer.seal(profile_start_unix_ns=start_unix_ns))
