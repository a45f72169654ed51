"""A store as it is after a year: a million requests, five million passes, three million cache events, 200 runs.

    python -m benchmarks.large_store FOLDER

Everything is replayed by the engine and sealed like any run, from fixed seeds, so it is the same on every machine: a
*measured* run (a replay with pass times of its own, without what only a replay knows) and three replays of it, each of
a quarter of a million requests; and small runs of every kind beside them. A folder that holds the store already is
left as it is.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engine import knobs as knob_table
from engine.bundle import Bundle, BundleWriter, Check, find_bundle, list_bundles, open_bundle, working_folder
from engine.identity import Identity
from engine.ladder import build_ladder
from engine.replay import replay
from engine.timing import FitSource, fit
from engine.traces import keep_trace, load_trace
from engine.traces.tree import Trace

RUNS = 200
REQUESTS = 250_000
"""Of each large run; its passes are five times as many, its cache events three times."""
BLOCK = 64
TURNS = 10
PER_S = 25.0
"""Requests that the deployment below finishes in a simulated second."""
DEPLOYMENT: dict[str, Any] = {
    "lanes": 8,
    "warmup_s": 60.0,
    "grace_s": 5.0,
    "wrap": True,
    "cache_bust": "play",
    "dispatch_lag_ms": 0.2,
    "request_latency_ms": 1.5,
    "response_latency_ms": 2.5,
    "max_num_seqs": 6,
    "max_num_batched_tokens": 1024,
    "block_size": BLOCK,
    "kv_blocks": 1200,
    "timing": "fixed",
    "between_passes_ms": 0.2,
    "fixed_pass_us": 6000.0,
    "fixed_prefill_token_us": 14.0,
    "fixed_decode_request_us": 450.0,
    "fixed_kv_token_ns": 60.0,
}
"""Eight lanes of agentic sessions on a pool that is too small for some of their beginnings."""
NOT_RECORDED = ("resolution", "prefill_ns", "decode_ns", "overhead_ns")
"""Columns of ``passes`` that only a replay can have."""


def trace_file(folder: Path, sessions: int, seed: int) -> Path:
    """Sessions over one system prompt that grow by a block or two a turn, as Mooncake JSONL."""
    draw = np.random.default_rng(seed)
    grown = draw.integers(1, 3, (sessions, TURNS)).tolist()
    outputs = draw.integers(10, 38, (sessions, TURNS)).tolist()
    delays = draw.exponential(120, (sessions, TURNS)).round().astype(int).tolist()
    path, unused = folder / f"sessions{sessions}.jsonl", 8
    with path.open("w") as lines:
        for session in range(sessions):
            ids = list(range(8))
            for turn in range(TURNS):
                ids += range(unused, unused + grown[session][turn])
                unused += grown[session][turn]
                row = {
                    "request_id": f"s{session}t{turn}",
                    "session_id": f"s{session:06}",
                    "input_length": len(ids) * BLOCK,
                    "output_length": outputs[session][turn],
                    "hash_ids": ids,
                    "delay" if turn else "timestamp": delays[session][turn] if turn else 0,
                }
                lines.write(json.dumps(row) + "\n")
    return path


def kept_trace(store: Path, sessions: int, seed: int) -> Trace:
    """The trace, with its file in the store, so that its replays can be varied."""
    with working_folder(store) as folder:
        path = trace_file(folder, sessions, seed)
        trace = load_trace(path)
        keep_trace(path, trace, [store])
    return trace


def as_measured(
    replayed: Bundle, store: Path, slug: str, checks: tuple[Check, ...] = (), tables: tuple[str, ...] = ()
) -> Bundle:
    """A replay as a recording: no answers of a timing model, an identity as an engine and its client would state it."""
    identity = Identity()
    for group, name, field in replayed.identity:
        latency = group == "client" and name.endswith("latency_ms")
        if group != "timing" and not latency and name not in ("dispatch_lag_ms", "think_scale"):
            identity.set(group, name, field.value, "recording")
    with BundleWriter(store, "measured", slug, f"Recording {slug}", identity) as writer:
        for name in tables or replayed.tables:
            if name == "coverage":
                continue
            table = replayed.table(name)
            assert table is not None
            writer.write_table(name, table.drop_columns([c for c in NOT_RECORDED if c in table.column_names]))
        run_id = writer.seal(phases=replayed.phases, ledger=replayed.ledger, qualification=checks)
    return open_bundle(store / run_id)


def a_sweep(store: Path, trace: Trace, slug: str, changes: Mapping[str, Any]) -> Bundle:
    """The passes of a short replay, as if they had been run for their own sake."""
    with working_folder(store) as folder:
        run = _replayed(folder, trace, slug, {**changes, "warmup_s": 0.0, "duration_s": 120.0})
        identity = Identity()
        for group, name, field in run.identity:
            if group in ("source", "model", "hardware", "topology", "kernels", "capacity", "scheduler", "telemetry"):
                identity.set(group, name, field.value, "sweep")
        with BundleWriter(store, "sweep", slug, f"Sweep {slug}", identity) as writer:
            passes = run.table("passes")
            assert passes is not None
            writer.write_table("passes", passes.drop_columns([*NOT_RECORDED, "members"]))
            return open_bundle(store / writer.seal(phases=run.phases))


def _replayed(
    store: Path,
    trace: Trace,
    slug: str,
    changes: Mapping[str, Any],
    model: Mapping[str, Any] | None = None,
    like: Bundle | None = None,
    title: str | None = None,
) -> Bundle:
    values = knob_table.resolve({**DEPLOYMENT, **changes})
    held = [like.run_id] if like is not None else []
    run_id = replay(trace, values, model, store=store, slug=slug, title=title or slug, like=like, held=held)
    return find_bundle([store], run_id)


def write_large(store: Path, requests: int) -> None:
    """The large recording, and three replays of it: as predicted, with a larger pool, and with slow decodes."""
    trace = kept_trace(store, requests // TURNS + requests // 100, 0)
    length = {"duration_s": round(requests / PER_S, 1)}
    model = fit([FitSource(a_sweep(store, trace, "sweep-of-large", {}))])
    with working_folder(store) as folder:
        measured = as_measured(_replayed(folder, trace, "truth", length), store, "ample-large")
        _told(f"{measured.run_id}: {measured.manifest['ledger']}")
    fitted = {**length, "timing": "fpm"}
    for slug, changes in {
        "predicted": {"max_num_seqs": 5},
        "pool": {"kv_blocks": 2400},
        "slow": {"pass_scale": 1.06},
    }.items():
        run = _replayed(
            store, trace, f"ample-large-{slug}", {**fitted, **changes}, model, measured, f"Replay of large, {slug}"
        )
        _told(f"{run.run_id}: {run.rows('requests'):,} requests, {run.rows('passes'):,} passes")


def write_small(store: Path, runs: int) -> None:
    """Small runs of every kind: sweeps, recordings with replays, ladders, failed ones, such with requests alone."""
    trace = kept_trace(store, 60, 1)
    short = {"warmup_s": 4.0, "duration_s": 20.0}
    made = 0
    for number in range(runs // 16):
        a_sweep(store, trace, f"sweep{number:02}", {"fixed_pass_us": 5000.0 + 50 * number, "kv_blocks": 300 + number})
        made += 1
    for number in _count():
        changes = short | {"fixed_pass_us": 5500.0 + 20 * number, "max_num_seqs": 2 + number % 5}
        with working_folder(store) as folder:
            truth = _replayed(folder, trace, "truth", changes)
            failed = number % 5 == 4
            checks = (Check("clock_aligned", "fail", "passes and requests differ by 80 ms"),) if failed else ()
            tables = ("requests",) if number % 7 == 6 else ()
            measured = as_measured(truth, store, f"small{number:02}", checks, tables)
        made += 1
        for change in ({"kv_blocks": 400}, {"fixed_decode_request_us": 500.0}, {"lanes": 6}):
            if made >= runs:
                return
            base = _replayed(
                store, trace, f"small{number:02}-{next(iter(change))}", {**changes, **change}, like=measured
            )
            made += 1
        if number < 3:
            built = build_ladder(measured, base, stores=[store], store=store)
            made += sum(rung.run_id is not None for rung in built.rungs)
        if made >= runs:
            return


def _count() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


def _told(text: str) -> None:
    print(f"{time.process_time():7.1f} s  {text}", file=sys.stderr, flush=True)


def write_store(store: Path, requests: int = REQUESTS, runs: int = RUNS) -> Path:
    """The store, written unless it is there; the folder."""
    done = store / f".large-{requests}-{runs}"
    if not done.exists():
        store.mkdir(parents=True, exist_ok=True)
        write_large(store, requests)
        write_small(store, runs - len(list_bundles(store)))
        done.touch()
    return store


def counted(store: Path) -> dict[str, int]:
    """Runs of the store, and the rows of their tables together."""
    bundles = [open_bundle(path) for path in list_bundles(store)]
    rows = {name: sum(b.rows(name) or 0 for b in bundles) for name in ("requests", "passes", "kv_events", "chunks")}
    return {"runs": len(bundles), **rows}


def main() -> None:
    """Write the store and say what it holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of each large run")
    parser.add_argument("--runs", type=int, default=RUNS)
    arguments = parser.parse_args()
    store = write_store(arguments.folder, arguments.requests, arguments.runs)
    print(", ".join(f"{number:,} {name}" for name, number in counted(store).items()))


if __name__ == "__main__":
    main()
