"""A made-up agentic trace of token ids: ``python toy_trace.py FILE``; the same file every time.

Sessions of one to eight turns that share system prompts; some turns start children, fresh ones or forks of the
parent's context, and the next turn waits for them (docs/traces.md, agentic-trace/1).
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SEED = 20251
SESSIONS = 320
IDS = (210, 8100)
"""Token ids of ordinary words of the toy tokenizer."""
SYSTEMS = {"sysA": 650, "sysB": 430, "sysC": 225, "sysS": 345}
"""Tokens of each system prompt; the last one is that of children."""

Row = dict[str, Any]


def token_ids(rng: random.Random, count: int) -> list[int]:
    """Random words."""
    return [rng.randrange(*IDS) for _ in range(count)]


def length(rng: random.Random, spread: float, median: float, low: int, high: int) -> int:
    """Log-normal around a median, within bounds."""
    return int(max(low, min(high, round(rng.lognormvariate(0, spread) * median))))


def turn(rng: random.Random, number: int, low: int, median: int, high: int, spawn: Sequence[str] = ()) -> Row:
    """One turn: its own input, what it asks for, how long its author thinks, which children it starts."""
    count = length(rng, 0.8, median, low, high)
    outputs = 1 if rng.random() < 0.12 else length(rng, 0.7, 28, 2, 160)
    think = rng.uniform(0.02, 0.3) if rng.random() < 0.5 else rng.uniform(0.3, 2.0)
    return {
        "turn": number,
        "input_tokens": count,
        "output_tokens": outputs,
        "think_s": round(think, 3),
        "spawn": list(spawn),
        "input_ids": token_ids(rng, count),
    }


def child(rng: random.Random, name: str, parent: str, after: int) -> Row:
    """A session that a turn starts."""
    mode = "fork" if rng.random() < 0.35 else "fresh"
    turns = [turn(rng, n, 16, 150 if n == 0 else 90, 600) for n in range(rng.choice([1, 2, 2, 3]))]
    turns[0]["think_s"] = round(rng.uniform(0.0, 0.05), 3)
    return {
        "kind": "session",
        "session_id": name,
        "role": "child",
        "system": "sysS" if mode == "fresh" else None,
        "parent": {"session_id": parent, "after_turn": after, "mode": mode},
        "turns": turns,
    }


def session(rng: random.Random, name: str) -> list[Row]:
    """A session and its children."""
    system = rng.choices(["sysA", "sysB", "sysC"], [5, 3, 2])[0]
    count = rng.choices([1, 2, 3, 4, 5, 6, 8], [1, 2, 3, 4, 3, 2, 1])[0]
    turns: list[Row] = []
    children: list[Row] = []
    for number in range(count):
        spawn = []
        if number < count - 1 and rng.random() < 0.16:
            for _ in range(rng.choice([1, 1, 2])):
                children.append(child(rng, f"{name}.c{len(children)}", name, number))
                spawn.append(children[-1]["session_id"])
        low, median = (24, 260) if number == 0 else (12, 120)
        turns.append(turn(rng, number, low, median, 900, spawn))
    root = {"kind": "session", "session_id": name, "role": "root", "system": system, "parent": None, "turns": turns}
    return [root, *children]


def write(path: Path) -> None:
    """Write the trace."""
    rng = random.Random(SEED)
    rows: list[Row] = [
        {
            "kind": "meta",
            "schema": "agentic-trace/1",
            "seed": SEED,
            "sessions": SESSIONS,
            "systems": SYSTEMS,
            "token_id_range": list(IDS),
            "note": "self-authored synthetic trace; token ids are uniform random words",
        }
    ]
    rows += [{"kind": "system", "system": s, "tokens": n, "ids": token_ids(rng, n)} for s, n in SYSTEMS.items()]
    for number in range(SESSIONS):
        rows += session(rng, f"s{number:04d}")
    path.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
