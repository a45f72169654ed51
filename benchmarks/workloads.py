"""Synthetic workloads as Mooncake JSONL: fixed seeds, so that every machine replays the same bytes.

``python -m benchmarks.workloads FOLDER [NAME ...]`` writes them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Row = tuple[int, int, int, int, list[int]]
"""Session, turn, prompt tokens, output tokens, ids of the prompt's blocks."""

KV_TOKENS = 458_752
"""What an 80 GB card has left for the KV cache of an 8B model with grouped-query attention."""


def growing_sessions(block_size: int, sessions: int = 1000, turns: int = 10) -> Iterator[Row]:
    """Sessions with one system prompt of 1,856 tokens; each turn adds 320, 384 or 448 tokens, outputs included."""
    draw = np.random.default_rng(0)
    system = 1856 // block_size
    unused = system
    for session in range(sessions):
        ids = list(range(system))
        for turn in range(turns):
            blocks = int(draw.choice([320, 384, 448])) // block_size
            ids = ids + list(range(unused, unused + blocks))
            unused += blocks
            yield session, turn, len(ids) * block_size, int(draw.integers(192, 321)), ids


def chat_and_agent() -> tuple[list[Row], list[Row]]:
    """10,000 short single turns that share nothing; and 100 sessions of 20 turns that grow to 80,000 tokens."""
    draw = np.random.default_rng(5)
    chat: list[Row] = []
    unused = 0
    for session in range(10_000):
        blocks = int(draw.integers(4, 13))
        ids = list(range(unused, unused + blocks))
        chat.append((session, 0, blocks * 64, int(draw.integers(32, 97)), ids))
        unused += blocks
    agent: list[Row] = []
    unused = 100
    for session in range(100):
        ids = list(range(100))
        for turn in range(20):
            blocks = int(draw.integers(20, 61))
            ids = ids + list(range(unused, unused + blocks))
            unused += blocks
            agent.append((session, turn, len(ids) * 64, int(draw.integers(256, 769)), ids))
    return chat, agent


def large_blocks() -> Iterator[Row]:
    """1,000 sessions of 10 turns named in blocks of 512 tokens, of which every turn adds one or two."""
    draw = np.random.default_rng(7)
    unused = 4
    for session in range(1000):
        ids = list(range(4))
        for turn in range(10):
            blocks = int(draw.choice([1, 1, 1, 2]))
            ids = ids + list(range(unused, unused + blocks))
            unused += blocks
            yield session, turn, len(ids) * 512, int(draw.integers(192, 321)), ids


@dataclass(frozen=True)
class Workload:
    """A trace and the deployment that it is played against; ``clients`` play one session each at a time."""

    trace: str
    block_size: int
    clients: int
    rows: Callable[[], Iterator[Row] | list[Row]]
    kv_tokens: int = KV_TOKENS
    hash_tokens: int | None = None
    """Tokens of a hash id of the trace, where they are more than a block of the engine."""


WORKLOADS = {
    "w10k_16": Workload("w10k_16", 16, 32, lambda: growing_sessions(16)),
    "w10k_64": Workload("w10k_64", 64, 32, lambda: growing_sessions(64)),
    "w1k_16": Workload("w1k_16", 16, 32, lambda: growing_sessions(16, 100)),
    "w1k_64": Workload("w1k_64", 64, 32, lambda: growing_sessions(64, 100)),
    "moon512_16": Workload("moon512", 16, 32, large_blocks, hash_tokens=512),
    "moon512_64": Workload("moon512", 64, 32, large_blocks, hash_tokens=512),
    "c64": Workload("w10k_64", 64, 64, lambda: growing_sessions(64)),
    "chat": Workload("chat_64", 64, 256, lambda: chat_and_agent()[0]),
    "agent": Workload("agent_64", 64, 16, lambda: chat_and_agent()[1], kv_tokens=1_310_720),
}


def trace_file(workload: Workload, folder: Path) -> Path:
    """The workload's trace in ``folder``, written there if it is not yet."""
    path = folder / f"{workload.trace}.jsonl"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        with part.open("w") as lines:
            for session, turn, prompt, output, ids in workload.rows():
                row = {
                    "request_id": f"s{session}t{turn}",
                    "session_id": f"s{session}",
                    "input_length": prompt,
                    "output_length": output,
                    "hash_ids": ids,
                    "delay" if turn else "timestamp": 0,
                }
                lines.write(json.dumps(row) + "\n")
        part.rename(path)
    return path


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(f"{__doc__}\nNAME is one of {', '.join(WORKLOADS)}; all where none is given.")
    for name in sys.argv[2:] or WORKLOADS:
        print(trace_file(WORKLOADS[name], Path(sys.argv[1])))


if __name__ == "__main__":
    main()
