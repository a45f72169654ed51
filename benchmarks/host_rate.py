"""Requests per host second: a dense open field of short requests, and one long agentic play, on both cores.

The plain core walks every request in every pass and is the oracle; it gets a part of the dense load, as its cost per
request does not depend on how many follow.
"""

from __future__ import annotations

import argparse
import time
from array import array

import numpy as np

from engine import knobs as knob_table
from engine.replay import simulate
from engine.timing import build_timing
from engine.traces.tree import Conversation, Play, Trace, Turn

BLOCK = 64
DENSE = 131_072
ORACLE_SHARE = 32
"""The plain core gets the dense load divided by this."""
AGENTIC = 129
KNOBS = {"timing": "fixed", "block_size": BLOCK, "lane_assignment": "cursor", "max_num_batched_tokens": 8192}


def dense(requests: int) -> tuple[Trace, dict[str, int]]:
    """Single turns of 512 tokens that share nothing, 64 outputs each, 256 at a time."""
    blocks = 512 // BLOCK
    plays = []
    for number in range(requests):
        ids = array("q", range(number * blocks, (number + 1) * blocks))
        plays.append(Play(f"d{number}", [Conversation(f"d{number}", [Turn(64, 0, prompt_tokens=512, hash_ids=ids)])]))
    return Trace("dense", "generated", "0" * 64, plays, BLOCK), {"lanes": 256, "kv_blocks": 16_384}


def agentic(requests: int) -> tuple[Trace, dict[str, int]]:
    """One play whose prompts grow from 1,000 to 5,000 blocks, with 500 to 1,500 outputs."""
    draw = np.random.default_rng(3)
    ids = array("q", range(1000))
    turns = []
    for _ in range(requests):
        ids = ids + array("q", range(len(ids), len(ids) + 4000 // requests))
        turns.append(Turn(int(draw.integers(500, 1500)), 0, prompt_tokens=len(ids) * BLOCK, hash_ids=ids))
    return Trace("agentic", "generated", "1" * 64, [Play("a", [Conversation("a", turns)])], BLOCK), {
        "lanes": 1,
        "kv_blocks": 8_192,
    }


def rate(trace: Trace, knobs: dict[str, int], core: str) -> tuple[int, int, float]:
    """Requests, passes and CPU seconds of a replay."""
    values = knob_table.resolve({**KNOBS, **knobs, "core": core, "record_events": False})
    begun = time.process_time()
    result = simulate(trace, values, build_timing(values))
    return result.num_requests, result.num_passes, time.process_time() - begun


def main() -> None:
    """Print both loads on both cores."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"{'load':<10}{'core':<10}{'requests':>10}{'passes':>10}{'CPU s':>8}{'requests/s':>12}")
    for name, make, count in (("dense", dense, DENSE), ("agentic", agentic, AGENTIC)):
        for core in ("skipping", "plain"):
            share = ORACLE_SHARE if core == "plain" and name == "dense" else 1
            requests, passes, seconds = rate(*make(count // share), core)
            print(
                f"{name:<10}{core:<10}{requests:>10,}{passes:>10,}{seconds:>8.2f}{requests / seconds:>12,.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
