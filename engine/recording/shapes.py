"""The shapes of passes that a sweep is about.

* *prefill*: one request; ``new`` tokens are computed behind ``ctx`` tokens of prefix that the cache holds.
* *decode*: ``batch`` requests of about ``ctx`` tokens decode together.
* *mixed*: ``batch`` requests decode while prompts of ``new`` tokens come one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.recording.joining import Rows

DECODE_TOKENS = 24
"""Output of a decode shape: so many passes of the full batch, but for the first."""


@dataclass(frozen=True)
class Limits:
    """What the server allows: tokens of a pass, requests of a batch, tokens of a context, tokens of the KV pool, and
    of a block of it."""

    budget: int
    seats: int
    context: int
    pool: int
    block: int


@dataclass
class Shape:
    """A shape with its sizes in tokens and requests; ``requests`` are those that made it."""

    kind: str
    new: int = 0
    ctx: int = 0
    batch: int = 1
    rep: int = 0
    requests: list[str] = field(default_factory=list)


def shapes_for(limits: Limits) -> list[Shape]:
    """Every shape that fits, those of small contexts first."""
    news = _doubling(limits.block, limits.budget)
    contexts = [0, *_doubling(4 * limits.block, limits.context - 2 * limits.budget)]
    contexts = [ctx // limits.block * limits.block for ctx in contexts]
    batches = _doubling(1, limits.seats)
    shapes = [Shape("prefill", new, ctx) for ctx in contexts for new in news if _fits(limits, 1, ctx + new)]
    for ctx in contexts[1:]:
        shapes += [Shape("decode", 0, ctx, batch) for batch in batches if _fits(limits, batch, ctx + DECODE_TOKENS)]
    # A prompt of a mixed shape takes a seat and room of its own.
    some = batches[1::2] or batches[:1]
    for ctx in contexts[1::2]:
        for batch in some:
            for new in news[-2:]:
                if batch < limits.seats and _fits(limits, batch, ctx + 4 * DECODE_TOKENS, new):
                    shapes.append(Shape("mixed", new, ctx, batch))
    return shapes


def _fits(limits: Limits, batch: int, tokens: int, beside: int = 0) -> bool:
    room = limits.pool - limits.block  # a watermark of the pool stays free
    blocks = -(-(tokens + 1) // limits.block) * limits.block
    return max(tokens, beside) + 1 <= limits.context and batch * blocks + beside <= room


def _doubling(first: int, last: int) -> list[int]:
    sizes = []
    while first <= last:
        sizes.append(first)
        first *= 2
    return sizes


def labels(shapes: Sequence[Shape], passes: Rows) -> Rows:
    """A row per shape with its sizes and the times of the passes that it is about."""
    times: dict[int, list[float]] = {}
    for row in passes:
        if _about(row, shapes[row["shape_id"]]):
            times.setdefault(row["shape_id"], []).append(1e3 * row["wall_time_s"])
    return [
        {
            "shape_id": number,
            "shape": shape.kind,
            "new": shape.new,
            "ctx": shape.ctx,
            "batch": shape.batch,
            "rep": shape.rep,
            "requests": shape.requests,
            "step_ms": _spread(times.get(number, [])),
        }
        for number, shape in enumerate(shapes)
    ]


def _about(row: dict[str, Any], shape: Shape) -> bool:
    if shape.kind == "prefill":
        return bool(row["prefill_tokens"])
    if shape.kind == "decode":
        return row["num_prefill"] == 0 and row["num_decode"] == shape.batch
    return bool(row["num_prefill"] and row["num_decode"])


def _spread(times: Sequence[float]) -> dict[str, Any]:
    if not times:
        return {"n": 0}
    return {"n": len(times), "mean": round(float(np.mean(times)), 3), "p50": round(float(np.median(times)), 3)}
