"""The matrix products around attention, for each new token: to queries, keys and values, and back."""

from __future__ import annotations

from engine.deployment import Deployment
from engine.timing.analytic.roofline import Gemm, Rates
from engine.timing.analytic.sparse import indexed_layers


def projections(deployment: Deployment, rates: Rates) -> tuple[Gemm, ...]:
    """The products of all softmax layers, indexers included.

    Heads are divided among the GPUs of a sequence; the projections down to latents and the indexer are replicated.
    """
    model, attention = deployment.model, deployment.model.attention
    form, split, hidden = rates.of(deployment.weight_dtype), deployment.attention_tp, model.hidden
    layers = float(model.full_layers + model.window_layers)
    heads = attention.heads / split
    gemms: list[tuple[float, float, float]] = []
    if attention.is_latent:
        direct = attention.reads_latent
        query = heads * ((attention.kv_lora if direct else attention.nope_dim) + attention.rope_dim)
        down = attention.kv_lora + attention.rope_dim + attention.q_lora
        gemms += [(hidden, down, layers), (attention.q_lora or hidden, query, layers)]
        if not direct:
            gemms.append((attention.kv_lora, heads * (attention.nope_dim + attention.v_head_dim), layers))
    else:
        kv_heads = max(1.0, attention.kv_heads / split)
        out = heads * attention.head_dim + kv_heads * (attention.head_dim + attention.v_head_dim)
        gemms.append((hidden, out, layers))
    values = heads * attention.v_head_dim
    if attention.output_gate:
        gemms.append((hidden, values, layers))
    if attention.o_lora:
        groups = max(1.0, attention.o_groups / split)
        gemms += [(values / groups, attention.o_lora, layers * groups), (groups * attention.o_lora, hidden, layers)]
    else:
        gemms.append((values, hidden, layers))
    indexing = float(indexed_layers(model))
    if model.sparse is not None and indexing and model.sparse.index_heads:
        width = model.sparse.index_dim
        gemms += [
            (attention.q_lora or hidden, model.sparse.index_heads * width, indexing),
            (hidden, width, indexing),
        ]
    return tuple(Gemm(rates, k, n, form, count) for k, n, count in gemms)
