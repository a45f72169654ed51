"""Mixture of experts in a Hugging Face config: how many, how wide, and on which layers."""

from __future__ import annotations

from typing import Any

from engine.deployment.fields import Fields

_KINDS = ("moe", "mixtral", "gpt_oss")
"""Parts of the names of families that have experts whatever their config says."""
_COUNT = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts", "num_routed_experts")
_TOPK = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "experts_per_token", "top_k")
_WIDTH = ("moe_intermediate_size", "expert_intermediate_size", "expert_ffn_hidden_size")
_DENSE = ("dense_intermediate_size", "intermediate_size_mlp", "mlp_intermediate_size", "intermediate_size")
_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_SHARED_WIDTH = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")


def experts_of(fields: Fields, layers: int) -> dict[str, Any]:
    """``dense_width`` and the table ``experts`` of a model preset.

    Raises:
        GapscopeError: the width of an MLP is missing, or layers have experts of several widths.
    """
    count = fields.maybe(*_COUNT)
    if count is None:
        _check_dense(fields)
    if count is None or count < 2:
        return {"dense_width": fields.count("intermediate_size", "ffn_hidden_size", "n_inner")}
    if isinstance(fields.raw(*_WIDTH), list):
        raise fields.refuse("moe_intermediate_size is a list, expected experts of one width")
    width = fields.maybe(*_WIDTH)
    if width is None:
        width = fields.count("intermediate_size")
        fields.note("experts.width", "intermediate_size: no other width of an expert is stated")
    dense = _dense_layers(fields, layers)
    if dense == layers:
        raise fields.refuse(f"{count} experts, and no layer has them")
    experts = {"count": count, "topk": fields.count(*_TOPK), "width": width, "dense_layers": dense}
    experts["shared_width"] = _shared_width(fields, width)
    experts["input_width"] = fields.maybe("routed_expert_hidden_size", "moe_latent_size") or 0
    if not dense:
        fields.note("dense_width", "no layer without experts")
    return {"dense_width": fields.count(*_DENSE) if dense else 0, "experts": experts}


def _check_dense(fields: Fields) -> None:
    """Refuse a model that would pass as one without experts because nothing says how many it has."""
    for name in (*_TOPK, *_WIDTH, *_SHARED):
        if name != "top_k" and fields.raw(name):  # top_k is also a setting of sampling
            raise fields.refuse(
                f"{name} is {repr(fields.raw(name))[:40]} and nothing says how many experts there are, expected "
                "num_local_experts (0 for a dense model)"
            )
    family = str(fields.raw("model_type") or "")
    if any(kind in family for kind in _KINDS):
        raise fields.refuse(f"{family} has experts and nothing says how many there are, expected num_local_experts")


def _shared_width(fields: Fields, width: int) -> int:
    """Inner width of all shared experts together."""
    total = fields.maybe(*_SHARED_WIDTH)
    if total is not None:
        return total
    number = fields.maybe(*_SHARED)
    each = fields.maybe("shared_intermediate_size")
    if each is not None:
        return each * (1 if number is None else number)
    if number is None and fields.raw("model_type") in ("llama4", "llama4_text"):
        fields.note("experts.shared_width", "one shared expert beside the routed ones, as every Llama 4 has")
        return width
    return (number or 0) * width


def _dense_layers(fields: Fields, layers: int) -> int:
    """Layers without experts; a shape counts them and does not say where they are."""
    kinds = fields.per_layer("mlp_layer_types", layers)
    if kinds is not None:
        return sum(kind == "dense" for kind in kinds)
    frequency = fields.raw("moe_layer_freq")
    if isinstance(frequency, list):
        return sum(not code for code in fields.per_layer("moe_layer_freq", layers) or [])
    first = min(layers, fields.maybe("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index") or 0)
    if isinstance(frequency, int) and frequency > 1:
        with_experts = sum(layer % frequency == 0 for layer in range(first, layers))
    else:
        step = fields.maybe("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval") or 1
        only = fields.raw("mlp_only_layers")
        dense = only if isinstance(only, list) else []
        with_experts = sum((layer + 1) % step == 0 and layer not in dense for layer in range(first, layers))
    if layers - with_experts != first:
        fields.note("experts.dense_layers", f"{layers - with_experts} layers without experts, not all of them first")
    return layers - with_experts
