"""The shape of a model: what it takes to count its arithmetic, its weights and its KV."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention of one layer: over keys and values per head group, or over a latent (MLA).

    Latent attention has ``kv_lora`` above 0: each token keeps one vector of ``kv_lora + rope_dim`` for all heads;
    scores are ``nope_dim + rope_dim`` wide before absorption and values ``v_head_dim``. ``o_lora`` with ``o_groups`` is
    an output projection in two steps. ``output_gate`` is a second projection as wide as the output of all heads.
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    q_lora: int = 0
    kv_lora: int = 0
    nope_dim: int = 0
    rope_dim: int = 0
    o_lora: int = 0
    o_groups: int = 0
    output_gate: bool = False

    @property
    def is_latent(self) -> bool:
        """Whether a token keeps one latent vector instead of keys and values per head group."""
        return self.kv_lora > 0

    @property
    def reads_latent(self) -> bool:
        """Whether heads attend to the latent as it is (DeepSeek-V4), with no projection up to keys and values."""
        return self.is_latent and self.v_head_dim == self.kv_lora


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """Layers that keep a state of fixed size per sequence instead of a token's keys and values.

    The state is ``head_dim x head_dim`` per value head and, for a short convolution over queries, keys and values,
    the last ``conv_width - 1`` inputs of each channel.
    """

    layers: int
    k_heads: int
    v_heads: int
    head_dim: int
    conv_width: int
    state_dtype: str = "bf16"


@dataclass(frozen=True, slots=True)
class SparseAttention:
    """Attention that reads only some of the context.

    Either a ``schedule`` (one code per layer: 0 window only, 4 a pool of context / 4 of which the indexer picks
    ``topk``, 128 a pool of context / 128, all of it), or uniform: ``topk`` tokens in every layer, picked by an indexer
    that runs on ``indexed_layers`` of them. Index keys are ``index_dim`` wide, one per token for all heads, kept as
    ``index_dtype``.
    """

    topk: int
    index_heads: int = 0
    index_dim: int = 0
    indexed_layers: int = 0
    index_dtype: str = "bf16"
    schedule: tuple[int, ...] = ()
    window: int = 0


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture of experts on all layers but the first ``dense_layers``.

    ``width`` is the inner width of one expert, ``shared_width`` that of all shared experts together; experts work on
    vectors of ``input_width`` (0: the hidden width).
    """

    count: int
    topk: int
    width: int
    shared_width: int = 0
    dense_layers: int = 0
    input_width: int = 0


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder. Of ``layers``, ``linear.layers`` are linear, ``window_layers`` see ``window`` tokens, the rest all.

    ``dense_width`` is the inner width of the MLP of layers without experts (0: there are none). The dtypes are what the
    checkpoint is published in; a deployment may say others. ``sources`` says where each figure is from.
    """

    name: str
    hidden: int
    layers: int
    vocab: int
    attention: Attention
    dense_width: int
    experts: Experts | None = None
    sparse: SparseAttention | None = None
    linear: LinearAttention | None = None
    window_layers: int = 0
    window: int = 0
    tied_embeddings: bool = False
    mtp_layers: int = 0
    max_context: int | None = None
    weight_dtype: str = "bf16"
    expert_dtype: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def full_layers(self) -> int:
        """Layers whose attention sees the whole context (sparse ones included)."""
        return self.layers - self.window_layers - (self.linear.layers if self.linear else 0)

    @property
    def expert_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.experts.dense_layers if self.experts else 0
