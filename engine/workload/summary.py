"""What is in a workload, in figures."""

from __future__ import annotations

import numpy as np

from engine.traces.tree import Conversation, Trace
from engine.workload.content import Mark
from engine.workload.hash_ids import block_keys_of

BLOCK_TOKENS = 16
"""Block size at which reuse is counted where the trace has none of its own."""


def describe(trace: Trace) -> str:
    """A few lines: plays and turns, tokens, think times, and the share of prompt tokens that an endless cache saves."""
    block = trace.hash_block_tokens or BLOCK_TOKENS
    keys = block_keys_of(trace, block)
    seen: set[int] = set()
    prompts: list[int] = []
    reused = 0
    conversations = [c for play in trace.plays for c in play.conversations]
    for play in trace.plays:
        by_id = {c.conversation_id: c for c in play.conversations}
        waiting: list[tuple[Conversation, Mark | None]] = [(play.conversations[0], None)]
        for conversation, base in waiting:  # grows: parents come before their children
            walk = keys.walk(conversation, base, 0)
            for index, (turn, tokens) in enumerate(zip(conversation.turns, walk.prompt_tokens, strict=True)):
                limit = min((tokens - 1) // block, len(walk.keys[index]))
                hit = next((n for n in range(limit) if walk.keys[index][n] not in seen), limit)
                reused += hit * block
                prompts.append(tokens)
                seen.update(walk.keys[index][: (tokens + turn.output_tokens - 1) // block])
                forked = walk.marks.get(index)
                waiting += [(by_id[n], forked if by_id[n].mode == "fork" else None) for n in turn.spawn]
    turns = [turn for c in conversations for turn in c.turns]
    outputs = [turn.output_tokens for turn in turns]
    thinks = [turn.think_ns / 1e6 for turn in turns]
    children = [c for c in conversations if c.parent is not None]
    forks = sum(c.mode == "fork" for c in children)
    arrivals = [play.arrival_ns for play in trace.plays if play.arrival_ns is not None]
    spread = f"{(max(arrivals) - min(arrivals)) / 1e9:,.1f} s" if arrivals else "not recorded"
    lines = [
        ("trace", f"{trace.name}, {trace.format}, SHA-256 {trace.digest[:12]}..."),
        ("plays", f"{len(trace.plays):,}; arrivals over {spread}"),
        ("conversations", f"{len(conversations):,}, {len(children):,} of them spawned ({forks:,} forked)"),
        ("turns", f"{len(turns):,}"),
        ("prompt tokens", _spread(prompts)),
        ("output tokens", _spread(outputs)),
        ("think time, ms", _spread(thinks)),
        ("blocks", f"{block} tokens" + ("" if trace.hash_block_tokens else " (as counted here)")),
        ("reusable at most", f"{100 * reused / sum(prompts):.1f} % of the prompt tokens, played one by one"),
        *((f"note: {name}", text) for name, text in sorted(trace.notes.items())),
    ]
    return "\n".join(f"{name:<18}{text}" for name, text in lines)


def _spread(values: list[int] | list[float]) -> str:
    array = np.array(values, np.float64)
    middle, most = np.quantile(array, 0.5), array.max()
    return f"mean {array.mean():,.1f}, median {middle:,.1f}, largest {most:,.1f}, sum {array.sum():,.0f}"
