"""Attention in a Hugging Face config: heads, latents, linear layers, windows, sparse selection."""

from __future__ import annotations

import json
from typing import Any

from engine.deployment.fields import Fields

_FULL = {"full_attention", "attention", "global", "global_attention"}
_WINDOW = {"sliding_attention", "chunked_attention", "local_attention", "sliding_window"}
_LINEAR = {"linear_attention"}
_ALTERNATE = {"gpt_oss": 2, "gemma2": 2, "gemma3_text": 6, "gemma3": 6}
"""Families where every n-th layer sees all and the rest a window, and older configs do not say so."""


def attention_of(fields: Fields) -> dict[str, Any]:
    """The table ``attention`` of a model preset.

    Raises:
        GapscopeError: its dimensions are missing or do not fit.
    """
    heads = fields.count("num_attention_heads", "n_head", "num_heads")
    gate = {"output_gate": True} if _has_gate(fields) else {}
    if fields.raw("kv_lora_rank") is not None:
        return _latent(fields, heads) | gate
    kv_heads = fields.maybe("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
    if kv_heads is None:
        kv_heads = 1 if fields.raw("multi_query") is True else heads
        fields.note("attention.kv_heads", f"num_key_value_heads is not stated: taken as {kv_heads}")
    head_dim = _head_dim(fields, heads)
    rope = fields.maybe("qk_rope_head_dim") or 0
    if kv_heads == 1 and rope:
        return _shared_latent(fields, heads, head_dim, rope) | gate
    v_head_dim = fields.maybe("v_head_dim") or head_dim
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "v_head_dim": v_head_dim} | gate


def _has_gate(fields: Fields) -> bool:
    stated = fields.raw("attn_output_gate", "mla_use_output_gate", "attention_output_gate")
    if stated is not None:
        return bool(stated)
    family = str(fields.raw("model_type") or "")
    if family.startswith(("qwen3_5", "qwen3_next")):
        fields.note("attention.output_gate", f"attn_output_gate is not stated: every {family} has it")
        return True
    return False


def _head_dim(fields: Fields, heads: int) -> int:
    stated = fields.maybe("head_dim", "attention_head_dim", "kv_channels")
    if stated:
        return stated
    hidden = fields.count("hidden_size", "n_embd", "d_model", "dim")
    if hidden % heads:
        raise fields.refuse(f"head_dim is not stated, and hidden_size {hidden} is no multiple of {heads} heads")
    fields.note("attention.head_dim", f"head_dim is not stated: hidden_size {hidden} / {heads} heads")
    return hidden // heads


def _latent(fields: Fields, heads: int) -> dict[str, Any]:
    nope, rope = fields.count("qk_nope_head_dim", least=0), fields.count("qk_rope_head_dim", least=0)
    fields.note("attention.kv_heads", "one latent serves all heads")
    return {
        "heads": heads,
        "kv_heads": 1,
        "head_dim": nope + rope,
        "v_head_dim": fields.count("v_head_dim"),
        "q_lora": fields.maybe("q_lora_rank") or 0,
        "kv_lora": fields.count("kv_lora_rank"),
        "nope_dim": nope,
        "rope_dim": rope,
    }


def _shared_latent(fields: Fields, heads: int, head_dim: int, rope: int) -> dict[str, Any]:
    """DeepSeek-V4: one KV head that all heads read as keys and as values."""
    fields.note("attention.kv_lora", "one KV head with a rotary part: counted as a latent that all heads read")
    return {
        "heads": heads,
        "kv_heads": 1,
        "head_dim": head_dim,
        "v_head_dim": head_dim,
        "q_lora": fields.maybe("q_lora_rank") or 0,
        "kv_lora": head_dim,
        "nope_dim": head_dim - rope,
        "rope_dim": rope,
        "o_lora": fields.maybe("o_lora_rank") or 0,
        "o_groups": fields.maybe("o_groups") or 0,
    }


def _layer_kinds(fields: Fields, layers: int) -> list[str] | None:
    """``layer_types``, each known.

    Raises:
        GapscopeError: one is of a kind that is not priced.
    """
    kinds = fields.per_layer("layer_types", layers)
    if kinds is None:
        return None
    for kind in kinds:
        if str(kind) not in _FULL | _WINDOW | _LINEAR and "sparse" not in str(kind):
            raise fields.refuse(
                f"layer_types names {str(kind)[:40]!r}, expected full, sliding, linear or sparse attention"
            )
    return [str(kind) for kind in kinds]


def linear_of(fields: Fields, layers: int) -> dict[str, Any] | None:
    """The table ``linear`` of a model preset, or None.

    Raises:
        GapscopeError: linear layers of a kind that is not priced.
    """
    kimi = fields.raw("linear_attn_config")
    if isinstance(kimi, dict) and isinstance(kimi.get("kda_layers"), list) and kimi["kda_layers"]:
        inner = Fields(kimi, f"{fields.where}, linear_attn_config")
        heads = inner.count("num_heads")
        return {
            "layers": len(kimi["kda_layers"]),
            "k_heads": heads,
            "v_heads": heads,
            "head_dim": inner.count("head_dim"),
            "conv_width": inner.maybe("short_conv_kernel_size") or 0,
        }
    kinds = _layer_kinds(fields, layers)
    interval = fields.maybe("full_attention_interval")
    if kinds is not None:
        number = sum(kind in _LINEAR for kind in kinds)
    elif fields.raw("linear_num_key_heads") is not None:
        interval = interval or 4
        number = layers - layers // interval
        fields.note("linear.layers", f"no layer_types: every layer but each {interval}th is linear")
    else:
        number = 0
    lightning = fields.per_layer("attn_type_list", layers)
    if lightning is not None and 0 in lightning:
        raise fields.refuse("attn_type_list names lightning attention layers, which are not priced")
    if not number:
        return None
    k_dim, v_dim = fields.count("linear_key_head_dim"), fields.count("linear_value_head_dim")
    if k_dim != v_dim:
        raise fields.refuse(f"linear_key_head_dim {k_dim} and linear_value_head_dim {v_dim} differ, expected one size")
    state = fields.raw("mamba_ssm_dtype")
    return {
        "layers": number,
        "k_heads": fields.count("linear_num_key_heads"),
        "v_heads": fields.count("linear_num_value_heads"),
        "head_dim": k_dim,
        "conv_width": fields.maybe("linear_conv_kernel_dim") or 0,
        **({"state_dtype": "fp32"} if state == "float32" else {}),
    }


def windows_of(fields: Fields, layers: int) -> dict[str, int]:
    """``window_layers`` and ``window`` of a model preset.

    Raises:
        GapscopeError: window layers whose width is not stated.
    """
    window = fields.maybe("sliding_window", "attention_chunk_size", "window_size") or 0
    kinds = _layer_kinds(fields, layers)
    if fields.raw("compress_ratios") is not None:
        return {}
    if kinds is not None:
        number = sum(kind in _WINDOW for kind in kinds)
        if number and not window:
            raise fields.refuse(f"layer_types names {number} window layers and no sliding_window says how wide")
    elif not window or fields.raw("use_sliding_window") is False:
        return {}
    elif window >= (fields.maybe("max_position_embeddings") or window + 1):
        fields.note("window", f"sliding_window {window:,} is no shorter than the context: all layers see all of it")
        return {}
    else:
        number = _unnamed_windows(fields, layers)
    return {"window_layers": number, "window": window} if number else {}


def _unnamed_windows(fields: Fields, layers: int) -> int:
    """How many layers have the window, in configs that do not name each layer."""
    family = str(fields.raw("model_type") or "")
    period = fields.maybe("sliding_window_pattern") or _ALTERNATE.get(family)
    if fields.raw("attention_chunk_size") is not None:
        rotary = fields.per_layer("no_rope_layers", layers)  # 1: with rotary position, and a chunk
        number = sum(map(bool, rotary)) if rotary else layers - layers // 4
        fields.note("window_layers", "chunked: the layers with rotary position")
    elif period:
        number = layers - layers // period
        fields.note("window_layers", f"no layer_types: every layer but each {period}th has the window")
    elif (first := fields.maybe("max_window_layers")) is not None and fields.raw("use_sliding_window") is True:
        number = max(0, layers - first)
        fields.note("window_layers", f"use_sliding_window: the layers from {first} on have the window")
    else:
        number = layers
        fields.note("window_layers", "sliding_window is stated and no layer is excepted: all have it")
    return number


def sparse_of(fields: Fields, layers: int) -> dict[str, Any] | None:
    """The table ``sparse`` of a model preset, or None.

    Raises:
        GapscopeError: a compression schedule that is cut off or unreadable.
    """
    blocks = _blocks_of(fields, layers)
    if blocks is not None:
        return blocks
    topk = fields.maybe("index_topk")
    if not topk:
        return None
    fields.note("sparse.index_dtype", "not stated: vLLM keeps the index keys of this attention as fp8")
    indexer = {
        "topk": topk,
        "index_heads": fields.maybe("index_n_heads") or 0,
        "index_dim": fields.maybe("index_head_dim") or 0,
        "index_dtype": "fp8",
    }
    schedule = _schedule(fields, layers)
    if schedule is not None:
        window = fields.count("sliding_window")
        return indexer | {"indexed_layers": schedule.count(4), "schedule": schedule, "window": window}
    types = fields.per_layer("indexer_types", layers)
    if types is not None:
        return indexer | {"indexed_layers": sum(kind == "full" for kind in types)}
    kinds = _layer_kinds(fields, layers) or []
    indexed = sum("sparse" in kind for kind in kinds) or layers
    fields.note("sparse.indexed_layers", "no indexer_types: every sparse layer has an indexer")
    return indexer | {"indexed_layers": indexed}


def _blocks_of(fields: Fields, layers: int) -> dict[str, Any] | None:
    """MiniMax: whole blocks are selected; as the config has it, or as Transformers flattens it."""
    nested = fields.raw("sparse_attention_config")
    if isinstance(nested, dict) and nested.get("use_sparse_attention", True):
        inner = Fields(nested, f"{fields.where}, sparse_attention_config")
        frequency = inner.per_layer("sparse_attention_freq", layers)
        indexed = sum(map(bool, frequency)) if frequency is not None else layers
        block, number = inner.count("sparse_block_size"), inner.count("sparse_topk_blocks")
        heads, width = inner.count("sparse_num_index_heads"), inner.count("sparse_index_dim")
    elif (number := fields.maybe("index_topk_blocks") or 0) > 0:
        kinds = _layer_kinds(fields, layers) or []
        indexed = sum("sparse" in kind for kind in kinds) or layers
        block = fields.count("index_block_size")
        heads, width = fields.count("index_n_heads"), fields.count("index_head_dim")
    else:
        return None
    fields.note("sparse.topk", f"{number} blocks of {block} tokens")
    fields.note("sparse.index_dtype", "not stated: vLLM keeps the index keys of this attention as bf16")
    return {
        "topk": block * number,
        "index_heads": heads,
        "index_dim": width,
        "indexed_layers": indexed,
        "index_dtype": "bf16",
    }


def _schedule(fields: Fields, layers: int) -> list[int] | None:
    """``compress_ratios`` of the layers: a list, or one written as text; what is left over belongs to MTP layers."""
    value = fields.raw("compress_ratios")
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise fields.refuse(f"compress_ratios is {value[:40]!r}, expected a list of whole numbers") from None
    if not isinstance(value, list) or not all(type(code) is int and code >= 0 for code in value):
        raise fields.refuse("compress_ratios is no list of whole numbers")
    if len(value) < layers:
        raise fields.refuse(f"compress_ratios has {len(value)} entries for {layers} layers")
    over = len(value) - layers
    expected = fields.maybe("num_nextn_predict_layers") or 0
    if over and over != expected:
        fields.note("sparse.schedule", f"{over} entries beyond the {layers} layers are not used; {expected} are MTP's")
    return value[:layers]
