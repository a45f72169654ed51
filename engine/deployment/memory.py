"""The memory ledger of one GPU: what is loaded, what a pass needs, and how much KV the rest holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.deployment.deployed import Deployment
from engine.deployment.kv import KvBytes, kv_bytes_per_token
from engine.deployment.layout import check_layout
from engine.deployment.weights import weight_bytes
from engine.errors import GapscopeError

GIB = float(1 << 30)
LARGEST_GIB = 1_000_000
ACTIVATION_LAYERS = 2
ENGINES = ("vllm", "sglang")


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """Bytes on a GPU of the first pipeline stage.

    ``graphs_bytes`` None is not known, and then nothing is set aside for graphs. ``kv_pool_bytes`` below 0 says by how
    much the rest is too large. ``sequences`` are those of ``context`` tokens that the pool of one rank holds at once,
    not rounded; ``max_concurrency`` counts whole ones over all attention ranks.
    """

    hbm_bytes: float
    usable_bytes: float
    weights: Mapping[str, float]
    activation_bytes: float
    graphs_bytes: float | None
    kv: KvBytes
    kv_pool_bytes: float
    block_size: int
    context: int
    blocks: int
    sequences: float
    max_concurrency: int

    @property
    def weight_bytes(self) -> float:
        """All weights on the GPU."""
        return sum(self.weights.values())

    @property
    def kv_tokens(self) -> int:
        """Tokens that the pool of one rank holds."""
        return self.blocks * self.block_size


def memory_ledger(
    deployment: Deployment,
    *,
    memory_fraction: float = 0.9,
    token_budget: int = 8192,
    block_size: int = 16,
    context: int | None = None,
    graphs_gib: float | None = None,
    hbm_gib: float | None = None,
    with_mtp: bool = False,
    engine: str = "vllm",
) -> MemoryLedger:
    """What lies on one GPU, and how much KV fits beside it.

    Args:
        deployment: the model on parts.
        memory_fraction: share of the capacity that the engine may use. Of vLLM's share weights, activations, graphs and
            KV are taken; of SGLang's (``mem_fraction_static``) weights and KV alone.
        token_budget: most new tokens of a pass.
        block_size: tokens per KV block.
        context: tokens per sequence; by default the longest that the model takes.
        graphs_gib: what captured graphs take; without graphs it is 0, else unknown unless given.
        hbm_gib: capacity of the GPU, in place of the part's.
        with_mtp: whether MTP layers are loaded.
        engine: ``vllm`` or ``sglang``.

    Raises:
        GapscopeError: the widths do not fit the model, the capacity or the context is not known, or an argument is
            out of its range.
    """
    check_layout(deployment)
    capacity = hbm_gib if hbm_gib is not None else deployment.part.hbm_gib
    if capacity is None:
        raise GapscopeError(
            f"The HBM capacity of {deployment.part.name} is not known: give it (hbm_gib), as there is no default."
        )
    context = context if context is not None else deployment.model.max_context
    if context is None:
        raise GapscopeError(f"The longest context of {deployment.model.name} is not known: give a context.")
    if not 0 < memory_fraction <= 1:  # a NaN is not
        raise GapscopeError(f"A memory fraction of {memory_fraction:g}: expected above 0 and at most 1.")
    sound = 0 < capacity <= LARGEST_GIB and 0 <= (graphs_gib or 0) <= LARGEST_GIB
    if min(token_budget, block_size, context) < 1 or not sound:
        raise GapscopeError(
            f"Token budget {token_budget}, block size {block_size}, context {context}, capacity {capacity:g} GiB, "
            f"graphs {graphs_gib or 0:g} GiB: expected each above 0, graphs 0 or more, and at most {LARGEST_GIB:,} GiB."
        )
    if engine not in ENGINES:
        raise GapscopeError(f"Unknown engine {engine!r}: expected one of {', '.join(ENGINES)}.")
    hbm = capacity * GIB
    usable = hbm * memory_fraction
    weights = weight_bytes(deployment, with_mtp)
    activation = activation_bytes(deployment, token_budget)
    graphs = graphs_gib * GIB if graphs_gib is not None else (0.0 if deployment.graph == "none" else None)
    pool = usable - sum(weights.values())
    if engine == "vllm":
        pool -= activation + (graphs or 0.0)
    kv = kv_bytes_per_token(deployment)
    blocks, sequences = fitting(pool, kv, context, block_size)
    return MemoryLedger(
        hbm_bytes=hbm,
        usable_bytes=usable,
        weights=weights,
        activation_bytes=activation,
        graphs_bytes=graphs,
        kv=kv,
        kv_pool_bytes=pool,
        block_size=block_size,
        context=context,
        blocks=blocks,
        sequences=sequences,
        max_concurrency=int(sequences) * deployment.attention_dp,
    )


def fitting(pool_bytes: float, kv: KvBytes, context: int, block_size: int) -> tuple[int, float]:
    """Whole blocks that a pool holds, and sequences of ``context`` tokens, not rounded.

    Where layers keep a window or a state, blocks are those of the sequences that fit: a token then has no fixed size.
    """
    if pool_bytes <= 0:
        return 0, 0.0
    each = kv.per_sequence(context, block_size)
    sequences = pool_bytes / each
    if kv.window or kv.state:
        return int(sequences * -(-context // block_size)), sequences
    return int(pool_bytes // (kv.per_token * block_size)), sequences


def activation_bytes(deployment: Deployment, token_budget: int) -> float:
    """Bytes of activations: those of one layer at ``token_budget`` tokens, for at most two layers at once.

    Per token a layer has its input and its sum, queries, keys, values and output of the GPU's heads, and gate, up and
    their product of the GPU's share of the MLP: of the widest layer, with ``topk`` rows per token for experts. Each
    takes two bytes. Logits and what kernels need beside are not in it.
    """
    model, attention = deployment.model, deployment.model.attention
    gpus = deployment.attention_tp
    heads = -(-attention.heads // gpus)
    if attention.is_latent:
        cached = attention.q_lora + attention.kv_lora + attention.rope_dim
    else:
        cached = -(-attention.kv_heads // gpus) * (attention.head_dim + attention.v_head_dim)
    width = 2 * model.hidden + heads * (attention.head_dim + attention.v_head_dim) + cached
    mlp = 3 * model.dense_width / deployment.tp
    if (experts := model.experts) is not None:
        rows = experts.topk * ((experts.input_width or model.hidden) + 3 * experts.width)
        mlp = max(mlp, (rows + 3 * experts.shared_width) / deployment.tp)
    return 2.0 * token_budget * (width + mlp) * min(model.layers, ACTIVATION_LAYERS)
