"""Weights: how many parameters a model has, and how many bytes of them lie on one GPU, by component."""

from __future__ import annotations

from dataclasses import dataclass

from engine.deployment.deployed import Deployment
from engine.deployment.dtypes import dtype_bytes
from engine.deployment.model import Attention, ModelShape

COMPONENTS = (
    "embedding",
    "attention",
    "linear_attention",
    "indexer",
    "dense_mlp",
    "experts",
    "shared_experts",
    "routing",
    "norms",
    "head",
    "mtp",
)
"""``routing`` is the router and, where experts work on a narrower vector, the projections to it and back."""

_KEPT_WIDTH = 2.0
"""Bytes per element of what quantised checkpoints leave as it is: embedding, head, norms, router."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """Parameters of one layer of a kind: those that tensor parallelism divides, and those that every GPU has."""

    split: float
    whole: float = 0.0

    def on(self, gpus: int) -> float:
        """Parameters on one of ``gpus`` GPUs."""
        return self.split / gpus + self.whole


def parameters(model: ModelShape) -> dict[str, int]:
    """Parameters of the whole model by component; biases and scales of quantised weights are not counted.

    MTP layers are counted apart, without the embedding and the head that they share with the model: most statements of
    a model's size leave them out.
    """
    counts = {name: count for name, (count, _) in _on_gpu(model, 1, 1, 1).items()}
    return {name: round(counts[name]) for name in COMPONENTS if counts.get(name)}


def weight_bytes(deployment: Deployment, with_mtp: bool = False) -> dict[str, float]:
    """Bytes on a GPU of the first pipeline stage by component, scales included where the format has them.

    The GPUs that share a sequence divide attention's heads, embedding and head; all GPUs of a stage divide MLPs and
    experts. Projections down to latents, indexers, routers and norms are on each, and so is at least one KV head. With
    several stages the last one holds the head and the MTP layers in place of the embedding.

    Args:
        deployment: the model on parts.
        with_mtp: whether MTP layers are loaded, as they are for speculation.
    """
    model = deployment.model
    kept = max(_KEPT_WIDTH, dtype_bytes(deployment.weight_dtype))
    width = dtype_bytes(deployment.weight_dtype)
    expert_width = dtype_bytes(deployment.expert_dtype) if deployment.expert_dtype else width
    widths = {
        "embedding": kept,
        "head": kept,
        "norms": kept,
        "routing": kept,
        "experts": expert_width,
    }
    counts = _on_gpu(model, deployment.attention_tp, deployment.tp, deployment.pp)
    if deployment.pp > 1:
        counts.pop("head", None)
    found = {name: count * widths.get(name, width) for name, (count, _) in counts.items()}
    if with_mtp and deployment.pp == 1:
        routed = counts["mtp"][1]
        found["mtp"] = routed * expert_width + (counts["mtp"][0] - routed) * width
    else:
        found.pop("mtp", None)
    return {name: found[name] for name in COMPONENTS if found.get(name)}


def _on_gpu(model: ModelShape, attention_gpus: int, gpus: int, stages: int) -> dict[str, tuple[float, float]]:
    """Parameters on a GPU of the first stage by component, and how many of them are routed experts."""
    hidden, experts, linear, sparse = model.hidden, model.experts, model.linear, model.sparse
    softmax = model.full_layers + model.window_layers
    dense = experts.dense_layers if experts else model.layers

    def on_stage(layers: int) -> int:
        return -(-layers // stages)

    one_attention = _attention(hidden, model.attention, attention_gpus).on(attention_gpus)
    one_mlp = 3.0 * hidden * model.dense_width / gpus
    counts = {
        "embedding": model.vocab * hidden / attention_gpus,
        "attention": on_stage(softmax) * one_attention,
        "dense_mlp": on_stage(dense) * one_mlp,
        "norms": (2.0 * on_stage(model.layers) + 1.0) * hidden,
        "head": 0.0 if model.tied_embeddings else model.vocab * hidden / attention_gpus,
    }
    routed = shared = routing = 0.0
    if experts:
        inner = experts.input_width or hidden
        routed = 3.0 * inner * experts.width * experts.count / gpus
        shared = 3.0 * hidden * experts.shared_width / gpus
        routing = hidden * experts.count + (2.0 * hidden * inner if experts.input_width else 0.0)
        layers = on_stage(model.expert_layers)
        counts |= {"experts": layers * routed, "shared_experts": layers * shared, "routing": layers * routing}
    if linear:
        counts["linear_attention"] = on_stage(linear.layers) * _linear(model, attention_gpus)
    if sparse:
        counts["indexer"] = on_stage(sparse.indexed_layers) * _indexer(model)
    # An MTP layer is one of the model's layers, with experts if any have them, behind a projection of two vectors.
    block = one_attention + (routed + shared + routing if experts else one_mlp) + 2.0 * hidden * hidden
    found = {name: (count, 0.0) for name, count in counts.items()}
    found["mtp"] = (model.mtp_layers * block, model.mtp_layers * routed)
    return found


def _attention(hidden: int, attention: Attention, gpus: int) -> _Layer:
    """Projections of one softmax layer."""
    heads, values = attention.heads, attention.heads * attention.v_head_dim
    gate = hidden * values if attention.output_gate else 0
    out = hidden * values
    if attention.o_lora:
        out = values * attention.o_lora + attention.o_groups * attention.o_lora * hidden
    if not attention.is_latent:
        # A KV head that GPUs cannot divide among them is on each that needs it.
        kv_heads = -(-attention.kv_heads // gpus) * gpus
        kv = kv_heads * (attention.head_dim + attention.v_head_dim)
        return _Layer(hidden * (heads * attention.head_dim + kv) + gate + out)
    query = heads * (attention.nope_dim + attention.rope_dim)
    if attention.reads_latent:
        down, up = hidden * attention.kv_lora, 0
    else:
        down = hidden * (attention.kv_lora + attention.rope_dim)
        up = attention.kv_lora * heads * (attention.nope_dim + attention.v_head_dim)
    whole = down + hidden * attention.q_lora
    return _Layer((attention.q_lora or hidden) * query + up + gate + out, whole)


def _linear(model: ModelShape, gpus: int) -> float:
    """One linear layer on a GPU: queries, keys, values, gate, output, two rates per value head, the convolution."""
    assert model.linear is not None
    linear, hidden = model.linear, model.hidden
    k_width, v_width = linear.k_heads * linear.head_dim, linear.v_heads * linear.head_dim
    channels = 2 * k_width + v_width
    total = hidden * (channels + 2 * v_width + 2 * linear.v_heads) + channels * linear.conv_width
    return total / gpus


def _indexer(model: ModelShape) -> float:
    """Projections of one indexer: queries of its heads, one key, and a weight per head; the same on each GPU."""
    assert model.sparse is not None
    sparse = model.sparse
    queries = (model.attention.q_lora or model.hidden) * sparse.index_heads * sparse.index_dim
    return float(queries + model.hidden * (sparse.index_dim + sparse.index_heads))
