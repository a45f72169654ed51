"""A store of runs whose faults are known, because they were planted.

The truth is a simulation of a small trace with constants as timing, written as a *measured* run: under request ids of
its own, with its passes, members, cache events and block hashes, but nothing that only a replay has. A prediction of it
is the same simulation with one fault. ``planted_store`` makes them all.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from engine import knobs as knob_table
from engine.bundle import Bundle, BundleWriter, find_bundle, open_bundle
from engine.identity import Identity
from engine.replay import replay
from engine.traces import keep_trace, load_trace
from engine.traces.tree import Trace

TRUTH: dict[str, Any] = {
    "lanes": 6,
    "lane_stagger_ms": 170.0,
    "warmup_s": 5.0,
    "duration_s": 95.0,
    "grace_s": 0.02,
    "dispatch_lag_ms": 2.0,
    "request_latency_ms": 3.0,
    "response_latency_ms": 4.0,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "block_size": 16,
    "kv_blocks": 161,
    "timing": "fixed",
    "between_passes_ms": 0.5,
    "fixed_pass_us": 1000.0,
    "fixed_prefill_token_us": 400.0,
    "fixed_decode_request_us": 4000.0,
    "fixed_kv_token_ns": 10.0,
}
"""The planted deployment: a pool that is too small for its sessions, so that content is evicted and computed again."""

FAULTS: dict[str, dict[str, Any]] = {
    "none": {},
    "pool": {"kv_blocks": 2 * 160 + 1},  # twice the usable blocks
    "think": {"think_scale": 0.0},
    "decode": {"fixed_decode_request_us": 4400.0},  # 10 % slow
    "compensating": {"fixed_prefill_token_us": 320.0},  # 20 % low, and a delay of the frontend that hides it in TTFT
}
"""What is wrong with each prediction; the delay of the last one is looked for."""

NOT_RECORDED = ("resolution", "prefill_ns", "decode_ns", "overhead_ns")
"""Columns of ``passes`` that only a replay can have."""


def planted_store(store: Path) -> dict[str, tuple[str, str]]:
    """Write the truth and its predictions; (measured run id, base run id) by the name of the fault."""
    trace = write_trace(store)
    measured = write_truth(store, trace)
    found = {}
    for name, changes in FAULTS.items():
        if name == "compensating":
            changes = changes | {"response_latency_ms": hiding_latency_ms(store, trace, measured, changes)}
        found[name] = (measured.run_id, predict(store, trace, measured, changes, name))
    return found


def predict(store: Path, trace: Trace, measured: Bundle, changes: Mapping[str, Any], name: str = "probe") -> str:
    """A replay with the planted deployment but for ``changes``; its run id."""
    values = knob_table.resolve({**TRUTH, **changes})
    return replay(trace, values, store=store, title=f"planted {name}", slug=f"planted-{name}", like=measured)


def hiding_latency_ms(store: Path, trace: Trace, measured: Bundle, changes: Mapping[str, Any]) -> float:
    """The response latency under which a wrong prediction comes nearest to the measured mean TTFT.

    A longer latency also delays what is sent next, so it is approached step by step.
    """
    latency, tried = float(TRUTH["response_latency_ms"]), {}
    for _ in range(6):
        run = predict(store / "probes", trace, measured, {**changes, "response_latency_ms": latency})
        missing = mean_ttft_ms(measured) - mean_ttft_ms(find_bundle([store / "probes"], run))
        tried[latency] = abs(missing)
        latency = round(latency + missing, 6)
    return min(tried, key=lambda at: (tried[at], at))


def mean_ttft_ms(bundle: Bundle) -> float:
    """Mean TTFT of the successful requests of the profile."""
    table = bundle.table("requests", ["status", "phase", "dispatched_ns", "first_visible_ns"])
    assert table is not None
    keep = pc.and_(pc.equal(table["status"], "ok"), pc.equal(table["phase"], "profile"))
    table = table.filter(keep)
    return float(pc.mean(pc.subtract(table["first_visible_ns"], table["dispatched_ns"])).as_py()) / 1e6


# -- the truth -------------------------------------------------------------------------------------------------


def write_truth(store: Path, trace: Trace, changes: Mapping[str, Any] | None = None, slug: str = "planted") -> Bundle:
    """The simulation of the planted deployment, as the recording that an engine would have left."""
    values = knob_table.resolve({**TRUTH, **(changes or {})})
    run = replay(trace, values, store=store / "hidden", title="truth", slug="truth")
    return as_measured(find_bundle([store / "hidden"], run), store, slug)


def as_measured(replayed: Bundle, store: Path, slug: str) -> Bundle:
    """A replay as a measured run: other request ids, no answers of a timing model, an identity as recorded."""
    names = _request_names(replayed)
    with BundleWriter(store, "measured", slug, f"{slug} (truth)", _identity(replayed)) as writer:
        for name in replayed.tables:
            if name == "coverage":
                continue
            table = replayed.table(name)
            assert table is not None
            table = table.drop_columns([c for c in NOT_RECORDED if c in table.column_names])
            writer.write_table(name, _renamed(table, names))
        run_id = writer.seal(phases=replayed.phases, ledger=replayed.ledger)
    return open_bundle(store / run_id)


def _request_names(replayed: Bundle) -> dict[str, str]:
    table = replayed.table("requests", ["request_id"])
    assert table is not None
    return {name: f"req-{number:05}" for number, name in enumerate(table["request_id"].to_pylist())}


def _renamed(table: pa.Table, names: Mapping[str, str]) -> pa.Table:
    for name in ("request_id", "parent_request_id"):
        if name in table.column_names:
            kind = table.schema.field(name).type
            values = [None if v is None else names[v] for v in table[name].to_pylist()]
            table = table.set_column(table.schema.get_field_index(name), name, pa.array(values).cast(kind))
    if "members" in table.column_names:
        kind = table.schema.field("members").type
        rows = [[m | {"request_id": names[m["request_id"]]} for m in row] for row in table["members"].to_pylist()]
        table = table.set_column(table.schema.get_field_index("members"), "members", pa.array(rows, kind))
    return table


def _identity(replayed: Bundle) -> Identity:
    """What the planted engine and its load generator would have said about themselves."""
    identity = Identity()
    for group, name, field in replayed.identity:
        latency = group == "client" and name.endswith("latency_ms")
        if group != "timing" and not latency and name not in ("dispatch_lag_ms", "think_scale"):
            identity.set(group, name, field.value, "recording")
    identity.set("source", "distribution", "planted engine", "recording")
    identity.set("client", "generator", "planted client", "recording")
    identity.set("telemetry", "fpm_producer", "planted engine", "recording")
    return identity


# -- the trace -------------------------------------------------------------------------------------------------


def write_trace(store: Path, plays: int = 90, seed: int = 5) -> Trace:
    """A trace of short sessions with think times, every third with a subagent; it is kept in the store."""
    path = store / "planted.jsonl"
    store.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in trace_rows(plays, seed)), encoding="utf-8")
    trace = load_trace(path)
    keep_trace(path, trace, [store])
    path.unlink()
    return trace


def trace_rows(plays: int, seed: int) -> list[dict[str, Any]]:
    """Rows of an ``agentic-trace/1`` file, the same for the same seed."""
    rng = random.Random(seed)

    def ids(count: int) -> list[int]:
        return [rng.randrange(1000, 30_000) for _ in range(count)]

    def turn(number: int, spawn: list[str]) -> dict[str, Any]:
        tokens = ids(rng.randint(40, 200) if number == 0 else rng.randint(20, 120))
        return {
            "turn": number,
            "input_tokens": len(tokens),
            "input_ids": tokens,
            "output_tokens": rng.randint(8, 36),
            "think_s": round(rng.expovariate(1 / 1.2), 6),
            "spawn": spawn,
        }

    rows: list[dict[str, Any]] = [{"kind": "meta", "schema": "agentic-trace/1", "seed": seed}]
    for name in ("red", "blue"):
        rows.append({"kind": "system", "system": name, "tokens": 70, "ids": ids(70)})
    for play in range(plays):
        root, turns = f"p{play:03}", rng.randint(3, 7)
        child = f"{root}.c" if play % 3 == 0 else None
        spawns = [[child] if child and number == 1 else [] for number in range(turns)]
        system = ("red", "blue")[play % 2]
        talk = [turn(number, spawn) for number, spawn in enumerate(spawns)]
        rows.append({"kind": "session", "session_id": root, "system": system, "parent": None, "turns": talk})
        if child:
            parent = {"session_id": root, "after_turn": 1, "mode": ("fork", "fresh")[play % 2]}
            talk = [turn(number, []) for number in range(rng.randint(1, 3))]
            rows.append({"kind": "session", "session_id": child, "system": system, "parent": parent, "turns": talk})
    return rows
