"""What attention that reads only some of the context costs, as a share of reading all of it.

Arithmetic of one query token over its context decides. ``m`` is that of one context token over all heads: scores and
values, ``heads x (score width + value width)``; an index key costs ``index_heads x index_dim``.

By schedule (one code per layer), with ``w = min(context, window)``:

    0    w m                                                    window only
    4    (w + min(topk, context / 4)) m + (context / 4) index   a pool of every 4 tokens, of which some are picked
    128  (w + context / 128) m                                  a pool of every 128, all of it

    scale = sum over layers / (layers x context x m)

Uniform: ``selection + indexing x cost``, with selection ``min(topk, context) / context`` and indexing
``indexed_layers / layers x index / m``; cost is that of picking against a fused kernel. Where nothing but a topk is
known: ``max(0.15, topk / context)``.

A scale is at most 1, since an engine with fewer tokens than it may pick attends to all of them; what an unfused
indexer costs above a fused one (the *excess*) comes on top of that.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.deployment import ModelShape
from engine.timing.analytic.amounts import Amount, larger, smaller

WINDOW_ONLY, PICKED, POOLED = 0, 4, 128
FALLBACK_FLOOR = 0.15


@dataclass(frozen=True, slots=True)
class Scale:
    """Share of dense attention at a context, averaged over layers: ``raw`` as the formula has it.

    ``kind`` is schedule, uniform or fallback. The raw share is ``((window share) + picked + pooled) / context``, linear
    between the points where a minimum turns.
    """

    kind: str
    window: float
    topk: float
    every: float
    picked_layers: float
    """Share of layers that pick."""
    window_layers: float
    pool: float
    """Context tokens' share that is read of a pool without being picked."""
    index: float
    """Arithmetic of indexing per context token against ``m``, averaged over layers."""
    excess: float

    def raw(self, context: Amount) -> Amount:
        """Share of dense attention with a fused indexer, not bounded by 1."""
        return self.tokens(context) / context

    def tokens(self, context: Amount) -> Amount:
        """Context tokens per query whose dense cost is the same."""
        if self.kind == "fallback":
            return larger(FALLBACK_FLOOR * context, smaller(self.topk, context))
        return (
            self.window_layers * smaller(context, self.window)
            + self.picked_layers * smaller(self.topk, context / self.every)
            + (self.pool + self.index) * context
        )

    def bounded(self, context: Amount) -> Amount:
        """Tokens per query as they are charged: at most the context, and the excess on top."""
        return smaller(self.tokens(context), context) + self.excess * context


def scale_of(model: ModelShape, cost_scale: float = 1.0) -> Scale | None:
    """The scale of a model; None where its attention is dense, or its schedule holds a code that nobody knows."""
    sparse, attention = model.sparse, model.attention
    if sparse is None:
        return None
    if attention.is_latent:
        per_token = attention.heads * (2 * attention.kv_lora + attention.rope_dim)
    else:
        per_token = attention.heads * 2 * attention.head_dim
    index = sparse.index_heads * sparse.index_dim / per_token
    if sparse.schedule:
        codes = sparse.schedule[: model.layers]
        if len(codes) < model.layers or not set(sparse.schedule) <= {WINDOW_ONLY, PICKED, POOLED}:
            return None
        picked, pooled = (codes.count(code) / len(codes) for code in (PICKED, POOLED))
        return Scale(
            "schedule",
            window=float(sparse.window),
            topk=float(sparse.topk),
            every=float(PICKED),
            picked_layers=picked,
            window_layers=1.0,
            pool=pooled / POOLED,
            index=picked * index / PICKED,
            excess=0.0,
        )
    if not sparse.topk:
        return None
    if index and sparse.indexed_layers:
        indexing = sparse.indexed_layers / model.layers * index
        return Scale("uniform", 0.0, float(sparse.topk), 1.0, 1.0, 0.0, 0.0, indexing, indexing * (cost_scale - 1.0))
    return Scale("fallback", 0.0, float(sparse.topk), 1.0, 1.0, 0.0, 0.0, 0.0, 0.0)


def indexed_layers(model: ModelShape) -> int:
    """Layers that run an indexer."""
    sparse = model.sparse
    if sparse is None:
        return 0
    return sparse.schedule[: model.layers].count(PICKED) if sparse.schedule else sparse.indexed_layers
