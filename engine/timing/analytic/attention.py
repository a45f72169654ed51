"""Attention over what was computed before: the longer of its reading and its arithmetic, per group of alike layers.

A pass reads each token's keys and values once per sequence, and multiplies each query with every token that it sees.
Latent attention reads one vector per token for all heads, undivided by tensor parallelism; it decodes in that latent
(scores ``kv_lora + rope_dim`` wide, values ``kv_lora``) and computes prompts in keys and values made from it (scores
``nope_dim + rope_dim`` wide, values ``v_head_dim``), for which the latents read are projected up again. Heads that
attend to the latent as it is, or to picked tokens, do so in prompts too.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.deployment import Deployment, dtype_bytes
from engine.timing.analytic.amounts import Amount, larger, smaller
from engine.timing.analytic.roofline import VALUE_BYTES, Gemm, Rates
from engine.timing.analytic.sparse import Scale, scale_of
from engine.timing.analytic.work import Work

FAMILY_FACTORS = {"aiter": 0.85, "ck": 0.90, "triton": 1.0, "hip": 1.10}
"""Time of attention kernels against Triton's; 1 for families that are not known."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """Nanoseconds of one layer: reading a cached token, moving a query token in and out, a query over a token."""

    cached: float
    query: float
    pair: float


class AttentionTime:
    """Attention of all softmax layers of a deployment, in nanoseconds, as the rank with most does it.

    ``picks`` says whether decodes of sparse models are charged what they pick of the context, or all of it; None: with
    attention data parallelism.
    """

    def __init__(self, deployment: Deployment, rates: Rates, picks: bool | None = None) -> None:
        model, attention = deployment.model, deployment.model.attention
        split, share = deployment.attention_tp, deployment.dcp
        heads = attention.heads / split
        kv_width = dtype_bytes(deployment.kv_dtype)
        self._scale = scale_of(model, deployment.sparse_cost_scale)
        self._picks = deployment.attention_dp > 1 if picks is None else picks
        latent = attention.kv_lora + attention.rope_dim
        if attention.is_latent:
            cached = latent * kv_width
            wide = (float(latent), float(attention.kv_lora))
            direct = attention.reads_latent or self._scale is not None
            narrow = wide if direct else (attention.nope_dim + attention.rope_dim, attention.v_head_dim)
        else:
            direct = True
            own = max(1.0, attention.kv_heads / split)
            cached = own * (attention.head_dim + attention.v_head_dim) * kv_width
            wide = narrow = (float(attention.head_dim), float(attention.v_head_dim))
        factor = FAMILY_FACTORS.get(deployment.attention_family, 1.0)

        def reading(widths: tuple[float, float], kv_bytes: float, gpus: int) -> _Reading:
            width = heads * (widths[0] + widths[1])
            return _Reading(
                factor * kv_bytes / gpus / rates.stream,
                factor * gpus * width * VALUE_BYTES / rates.stream,
                factor * 2.0 * width / rates.bf16,
            )

        self._decode = reading(wide, cached, share)
        if direct:
            self._prefill = reading(narrow, cached, 1)
            self._up: Gemm | None = None
        else:
            self._prefill = reading(narrow, heads * sum(narrow) * VALUE_BYTES, 1)
            out = heads * (attention.nope_dim + attention.v_head_dim)
            self._up = Gemm(rates, attention.kv_lora, out, rates.of(deployment.weight_dtype), model.full_layers)
        self._full, self._windowed, self._window = float(model.full_layers), float(model.window_layers), model.window

    @property
    def scale(self) -> Scale | None:
        """What the attention of the model reads of a context; None: all of it."""
        return self._scale

    def decode(self, work: Work) -> Amount:
        """One decode step of ``work.decodes`` sequences that verify ``work.width`` tokens each.

        Sparse models read the whole context while tensor parallel, as their measured steps do, plus what an unfused
        indexer takes; with attention data parallelism each rank computes all heads of its sequences, and only what is
        picked.
        """
        width, cached = work.width, work.decode_kv
        own = work.decodes * width
        time = 0.0
        if self._full:
            seen, scale = cached, self._scale
            if scale is not None and self._picks:
                seen = work.decodes * scale.bounded(larger(cached / larger(work.decodes, 1.0), 1.0))
            pairs = width * seen + own * ((width + 1.0) / 2.0)
            layer = self._layer(self._decode, seen + own, own, pairs)
            if scale is not None and not self._picks:
                layer = layer * (1.0 + scale.excess)
            time = time + self._full * layer
        if self._windowed:
            seen = smaller(cached, self._window * work.decodes)
            pairs = width * seen + own * ((width + 1.0) / 2.0)
            time = time + self._windowed * self._layer(self._decode, seen + own, own, pairs)
        return time

    def prefill(self, work: Work) -> Amount:
        """Attention of ``work.prompts`` alike prompts over themselves and what they had before."""
        prompts, new, cached = larger(work.prompts, 1.0), work.new_tokens, work.prompt_kv
        time = 0.0
        if self._full:
            seen = (cached + (new + prompts) / 2.0) / prompts  # by the mean query
            held = cached + new
            if self._scale is not None:
                seen = self._scale.bounded(larger(seen, 1.0))
                held = work.prompts * self._scale.bounded(larger(held / prompts, 1.0))
            time = time + self._full * self._layer(self._prefill, held, new, new * seen)
            if self._up is not None:
                time = time + self._up(cached) * (cached > 0)
        if self._windowed:
            each, before = new / prompts, cached / prompts
            growing = smaller(larger(self._window - before, 0.0), each)  # queries that see less than the window
            pairs = prompts * (growing * (before + (growing + 1.0) / 2.0) + (each - growing) * self._window)
            held = smaller(cached, self._window * prompts) + new
            time = time + self._windowed * self._layer(self._prefill, held, new, pairs)
        return time

    @staticmethod
    def _layer(reading: _Reading, cached: Amount, queries: Amount, pairs: Amount) -> Amount:
        return larger(reading.cached * cached + reading.query * queries, reading.pair * pairs)
