"""An hour of agentic load at full scale: what replaying and sealing it costs, and where the time goes.

The workload is generated: 64 lanes of growing sessions, prompts of 126,000 tokens on average in blocks of 64, 94 % of
them reused, 980 output tokens, against 8 attention-DP ranks with three-token MTP of mean length 2.49.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import resource
import tempfile
import time
from array import array
from collections import Counter
from pathlib import Path

import numpy as np

from engine import knobs as knob_table
from engine.bundle import open_bundle
from engine.replay import simulate, write
from engine.replay.result import ReplayResult
from engine.timing import build_timing
from engine.traces.prompt_ids import share_beginnings
from engine.traces.tree import Conversation, Play, Trace, Turn

BLOCK = 64
PLAYS = 400
KNOBS = {
    "lanes": 64,
    "lane_assignment": "cursor",
    "lane_stagger_ms": 500,
    "wrap": True,
    "duration_s": 3600,
    "grace_s": 30,
    "attention_dp": 8,
    "dp_router": "session",
    "spec_method": "mtp",
    "spec_tokens": 3,
    "spec_mean_length": 2.49,
    "block_size": BLOCK,
    "kv_blocks": 60_000,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 8192,
    "timing": "fixed",
    "fixed_pass_us": 38_600,
    "fixed_prefill_token_us": 4,
    "fixed_decode_request_us": 150,
    "fixed_kv_token_ns": 4,
}
PARTS = {
    "client": ("engine/workload", "engine/traces"),
    "scheduling": ("engine/serving/skipping/server", "engine/serving/skipping/decodes", "engine/serving/speculation"),
    "pool and prefix tree": (
        "engine/serving/skipping/pool",
        "engine/serving/skipping/prefix_tree",
        "engine/serving/skipping/content",
    ),
    "lockstep and loop": ("engine/serving/cluster/lockstep", "engine/replay/loop"),
    "pricing": ("engine/timing",),
    "record": ("engine/serving",),
    "tables": ("engine/replay",),
    "digest and files": ("engine/bundle", "pyarrow", "hashlib"),
}
"""Who a function belongs to, by the first part whose path has it."""


def agentx_hour(plays: int = PLAYS, seed: int = 0) -> Trace:
    """Sessions that grow by a few thousand tokens a turn over a shared system prompt, with think times."""
    draw = np.random.default_rng(seed)
    shared = 30_000 // BLOCK
    made, next_id = [], shared
    for number in range(plays):
        own = int(draw.integers(20_000, 44_000)) // BLOCK
        ids = array("q", [*range(shared), *range(next_id, next_id + own)])
        next_id += own
        turns = []
        for turn in range(int(draw.integers(12, 29))):
            if turn:
                grown = int(draw.integers(2_000, 11_400)) // BLOCK
                ids = ids + array("q", range(next_id, next_id + grown))
                next_id += grown
            prompt = len(ids) * BLOCK - int(draw.integers(0, 60))
            outputs = int(draw.integers(200, 1761))
            think_ns = int(draw.exponential(14.4e9))
            turns.append(Turn(outputs, think_ns, prompt_tokens=prompt, hash_ids=ids))
        name = f"play{number}"
        made.append(Play(name, [Conversation(name, turns)]))
    trace = Trace("agentx_hour", "generated", f"{seed:064x}", made, BLOCK)
    share_beginnings(trace)  # like every trace that is read from a file
    return trace


def replay_hour(trace: Trace, store: Path) -> tuple[ReplayResult, str, dict[str, float]]:
    """Replay and seal; returns the result, the run id and the CPU seconds of each."""
    knobs = knob_table.resolve(KNOBS)
    begun = time.process_time()
    result = simulate(trace, knobs, build_timing(knobs))
    replayed = time.process_time()
    run_id = write(result, None, store)
    return result, run_id, {"replay": replayed - begun, "seal": time.process_time() - replayed}


def describe(result: ReplayResult) -> str:
    """What the hour was."""
    record = result.record
    requests, passes = record.requests, record.passes
    prompts = result.prompt_tokens()
    admitted = requests["cached_tokens"] >= 0
    reuse = requests["cached_tokens"][admitted].sum() / prompts[admitted].sum()
    lengths = record.bursts[record.bursts > 0]
    verified = len(lengths) - len(record.stretches["seq"])
    length = (lengths.sum() - len(record.stretches["seq"])) / verified
    return (
        f"{len(prompts):,} requests, mean prompt {prompts.mean():,.0f} and output "
        f"{requests['output_tokens'].mean():,.0f} tokens, {reuse:.1%} reused, {passes['start_ns'].size:,} passes of "
        f"ranks in {passes['step'].max() + 1:,} steps, {length:.2f} tokens per verification"
    )


def by_part(profile: cProfile.Profile) -> list[tuple[str, float]]:
    """Seconds in each part, by the file of each function; calls of built-in functions are shared out to the callers."""
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    spent: Counter[str] = Counter()
    for (file, _, _), (_, _, own, _, callers) in stats.items():
        if file.startswith("~") or "numpy" in file:
            for (caller, _, _), (_, _, share, _) in callers.items():
                spent[_part_of(caller)] += share
        else:
            spent[_part_of(file)] += own
    return spent.most_common()


def _part_of(file: str) -> str:
    return next((part for part, paths in PARTS.items() if any(path in file for path in paths)), "other")


def main() -> None:
    """Print what the hour costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", action="store_true", help="run it once more, and say where the time goes")
    arguments = parser.parse_args()
    trace = agentx_hour()
    with tempfile.TemporaryDirectory() as folder:
        wall = time.perf_counter()
        result, run_id, costs = replay_hour(trace, Path(folder))
        wall = time.perf_counter() - wall
        size = sum(path.stat().st_size for path in open_bundle(Path(folder) / run_id).path.iterdir())
        print(describe(result))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"replay {costs['replay']:.1f} s and seal {costs['seal']:.1f} s of CPU, {wall:.1f} s together; "
            f"{memory:,.0f} MiB at most, {size / 1e6:.0f} MB on disk, {run_id}"
        )
        if arguments.profile:
            del result
            profile = cProfile.Profile()
            profile.enable()
            replay_hour(trace, Path(folder) / "again")
            profile.disable()
            rows = by_part(profile)
            total = sum(seconds for _, seconds in rows)
            print("shares under a profiler, which makes calls dearer:")
            for part, seconds in rows:
                print(f"  {part:<22}{seconds / total:6.1%}")


if __name__ == "__main__":
    main()
