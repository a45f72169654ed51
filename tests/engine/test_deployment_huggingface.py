"""A Hugging Face config becomes the shape of a model: every packaged model, other spellings, and what is refused."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest
from hf_configs import CONFIGS

from engine.deployment import from_huggingface, load_model, model_names, parameters
from engine.errors import GapscopeError

LLAMA = CONFIGS["llama-3.1-8b"]
QWEN_MOE = CONFIGS["qwen3-30b-a3b"]
GPT_OSS = CONFIGS["gpt-oss-120b"]


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in names}


BERT = {
    "architectures": ["BertForMaskedLM"],
    "model_type": "bert",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "vocab_size": 30_522,
}


@pytest.mark.parametrize("name", model_names())
def test_a_packaged_model_is_what_its_config_says(name: str) -> None:
    shape = from_huggingface(CONFIGS[name], name)
    assert replace(shape, sources={}) == replace(load_model(name), sources={})


def test_a_missing_head_dim_is_assumed_and_noted() -> None:
    shape = from_huggingface(LLAMA)
    assert shape.attention.head_dim == 4096 // 32
    assert "head_dim is not stated" in shape.sources["attention.head_dim"]
    with pytest.raises(GapscopeError, match="no multiple of 30 heads"):
        from_huggingface(LLAMA | {"num_attention_heads": 30, "num_key_value_heads": 30})


def test_the_name_is_given_or_the_configs_own() -> None:
    assert from_huggingface(LLAMA).name == "llama"
    assert from_huggingface(LLAMA | {"_name_or_path": "meta-llama/Llama-3.1-8B"}).name == "Llama-3.1-8B"
    assert from_huggingface(LLAMA, "mine").name == "mine"


def test_without_kv_heads_each_head_has_its_own() -> None:
    shape = from_huggingface(without(LLAMA, "num_key_value_heads"))
    assert shape.attention.kv_heads == 32
    assert "attention.kv_heads" in shape.sources


def test_layers_with_experts_at_a_step_are_counted() -> None:
    # Of layers 0..47 every second has experts (1, 3, ...), and layer 5 is among the exceptions: 23 have them.
    shape = from_huggingface(QWEN_MOE | {"decoder_sparse_step": 2, "mlp_only_layers": [5]})
    assert shape.experts is not None
    assert (shape.experts.dense_layers, shape.dense_width) == (25, 6144)
    assert "not all of them first" in shape.sources["experts.dense_layers"]


def test_experts_can_be_spelt_otherwise() -> None:
    mixtral = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    shape = from_huggingface(mixtral)
    assert shape.experts is not None
    assert (shape.experts.count, shape.experts.topk, shape.experts.width, shape.dense_width) == (8, 2, 14336, 0)
    # Llama 4: every second layer has experts, beside which one shared expert works; dense layers are wider.
    llama4 = LLAMA | {
        "model_type": "llama4_text",
        "num_local_experts": 128,
        "num_experts_per_tok": 1,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "interleave_moe_layer_step": 2,
    }
    shape = from_huggingface(llama4)
    assert shape.experts is not None
    assert (shape.experts.dense_layers, shape.experts.shared_width, shape.dense_width) == (16, 8192, 16384)


def test_transformers_own_names_of_minimax_give_the_same_shape() -> None:
    nested = CONFIGS["minimax-m3"]
    text = without(nested["text_config"], "moe_layer_freq", "sparse_attention_config") | {
        "layer_types": ["full_attention"] * 3 + ["minimax_m3_sparse"] * 57,
        "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 57,
        "index_n_heads": 4,
        "index_head_dim": 128,
        "index_block_size": 128,
        "index_topk_blocks": 16,
    }
    flat = from_huggingface(nested | {"text_config": text})
    assert replace(flat, sources={}) == replace(from_huggingface(nested), sources={})


def test_windows_without_named_layers() -> None:
    older = without(GPT_OSS, "layer_types")
    assert from_huggingface(older).window_layers == 18
    mistral = LLAMA | {"model_type": "mistral", "sliding_window": 4096}
    shape = from_huggingface(mistral)
    assert (shape.window_layers, shape.window, shape.full_layers) == (32, 4096, 0)
    qwen2 = LLAMA | {"model_type": "qwen2", "sliding_window": 4096, "max_window_layers": 28}
    assert from_huggingface(qwen2 | {"use_sliding_window": False}).window_layers == 0
    assert from_huggingface(qwen2 | {"use_sliding_window": True}).window_layers == 4
    gemma3 = LLAMA | {"model_type": "gemma3_text", "sliding_window": 1024, "sliding_window_pattern": 6}
    assert from_huggingface(gemma3).full_layers == 5  # layers 6, 12, 18, 24 and 30 of 32


def test_a_schedule_can_be_text_and_must_cover_the_layers() -> None:
    flash = CONFIGS["deepseek-v4-flash"]
    as_text = from_huggingface(flash | {"compress_ratios": str(flash["compress_ratios"])})
    assert as_text.sparse == from_huggingface(flash).sparse
    assert as_text.sparse is not None
    assert as_text.sparse.schedule.count(4) == 21
    assert "sparse.schedule" not in as_text.sources  # the one entry beyond the layers is the MTP layer's
    more = from_huggingface(flash | {"compress_ratios": flash["compress_ratios"] + [0]})
    assert "2 entries beyond the 43 layers" in more.sources["sparse.schedule"]
    with pytest.raises(GapscopeError, match="compress_ratios has 40 entries for 43 layers"):
        from_huggingface(flash | {"compress_ratios": flash["compress_ratios"][:40]})
    with pytest.raises(GapscopeError, match="expected a list of whole numbers"):
        from_huggingface(flash | {"compress_ratios": "every fourth"})


def test_chunks_and_windows_that_are_no_windows() -> None:
    llama4 = LLAMA | {"model_type": "llama4_text", "attention_chunk_size": 8192}
    assert from_huggingface(llama4).window_layers == 24
    by_layer = from_huggingface(llama4 | {"no_rope_layers": [1, 1, 1, 1, 1, 1, 1, 0] * 4})
    assert (by_layer.window_layers, by_layer.window) == (28, 8192)
    phi3 = LLAMA | {"model_type": "phi3", "sliding_window": 262_144}
    assert from_huggingface(phi3).window_layers == 0
    assert "no shorter than the context" in from_huggingface(phi3).sources["window"]


UNPACKAGED: dict[str, tuple[float, float, dict[str, Any]]] = {
    "Mistral-7B": (
        7.24,
        0.005,
        LLAMA | {"model_type": "mistral", "vocab_size": 32_000, "sliding_window": 4096},
    ),
    "Mixtral-8x7B": (
        46.7,
        0.05,
        LLAMA | {"model_type": "mixtral", "vocab_size": 32_000, "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "DeepSeek-V2": (
        236,
        0.5,
        CONFIGS["deepseek-v3"]
        | {
            "model_type": "deepseek_v2",
            "hidden_size": 5120,
            "intermediate_size": 12_288,
            "moe_intermediate_size": 1536,
            "num_hidden_layers": 60,
            "n_routed_experts": 160,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "first_k_dense_replace": 1,
            "num_nextn_predict_layers": 0,
            "vocab_size": 102_400,
        },
    ),
    "DeepSeek-V2-Lite": (
        15.7,
        0.05,
        CONFIGS["deepseek-v3"]
        | {
            "model_type": "deepseek_v2",
            "hidden_size": 2048,
            "intermediate_size": 10_944,
            "moe_intermediate_size": 1408,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "first_k_dense_replace": 1,
            "num_nextn_predict_layers": 0,
            "q_lora_rank": None,
            "vocab_size": 102_400,
        },
    ),
    "GLM-4.5-Air": (
        106.5,
        0.5,
        CONFIGS["glm-4.7"]
        | {
            "hidden_size": 4096,
            "intermediate_size": 10_944,
            "moe_intermediate_size": 1408,
            "num_hidden_layers": 46,
            "n_routed_experts": 128,
            "first_k_dense_replace": 1,
        },
    ),
    "Qwen3-Next-80B-A3B": (
        79.7,
        0.1,
        {
            "model_type": "qwen3_next",
            "hidden_size": 2048,
            "num_hidden_layers": 48,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "full_attention_interval": 4,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "decoder_sparse_step": 1,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "intermediate_size": 5120,
            "vocab_size": 151_936,
            "max_position_embeddings": 262_144,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        },
    ),
}
"""Models without a preset: billions of parameters as published, its rounding, and what of the config counts."""


@pytest.mark.parametrize("name", UNPACKAGED)
def test_models_without_a_preset_have_their_published_size(name: str) -> None:
    billions, rounding, config = UNPACKAGED[name]
    counts = parameters(from_huggingface(config))
    total = sum(count for component, count in counts.items() if component != "mtp")
    assert total / 1e9 == pytest.approx(billions, abs=rounding)


def test_qwen3_next_is_told_by_its_family() -> None:
    shape = from_huggingface(UNPACKAGED["Qwen3-Next-80B-A3B"][2])
    assert shape.linear is not None
    assert (shape.linear.layers, shape.full_layers, shape.attention.output_gate) == (36, 12, True)
    assert {"linear.layers", "attention.output_gate"} <= set(shape.sources)


@pytest.mark.parametrize(
    ("quantization", "weights", "experts"),
    [
        ({"quant_method": "fp8"}, "fp8", None),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8", None),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", None),
        ({"quant_method": "awq", "bits": 4}, "int4", None),
        ({"quant_method": "gptq", "bits": 8}, "int8", None),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "nvfp4", None),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"type": "float", "num_bits": 8}}},
            },
            "fp8",
            None,
        ),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}, "bf16", "mxfp4"),
        (None, "bf16", None),
    ],
)
def test_number_formats(quantization: dict[str, Any] | None, weights: str, experts: str | None) -> None:
    shape = from_huggingface(QWEN_MOE | {"quantization_config": quantization})
    assert (shape.weight_dtype, shape.expert_dtype) == (weights, experts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quantization_config": {"quant_method": "quark"}}, "quark states no number format"),
        ({"model_type": "opt"}, "opt has MLPs of two projections"),
        (BERT, "BertForMaskedLM is an encoder, expected a decoder"),
        ({"architectures": None, "model_type": "xlm-roberta"}, "xlm-roberta is an encoder"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder is true, expected a decoder"),
        ({"num_experts_per_tok": 2}, "num_experts_per_tok is 2 and nothing says how many experts there are"),
        ({"moe_intermediate_size": 768}, "moe_intermediate_size is 768 and nothing says how many experts"),
        ({"model_type": "qwen3_moe"}, "qwen3_moe has experts and nothing says how many there are"),
        ({"quantization_config": ["fp8"]}, r"quantization_config is \['fp8'\], expected an object"),
        ({"hidden_size": -4096}, "hidden_size is -4096, expected a whole number from 1 to 1,000,000,000"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers is '32', expected a whole number"),
        ({"num_nextn_predict_layers": -1}, "num_nextn_predict_layers is -1, expected a whole number from 0"),
        ({"hidden_size": None}, "has no hidden_size: expected a whole number"),
        ({"num_hidden_layers": 32.5}, "num_hidden_layers is 32.5, expected a whole number"),
        ({"num_attention_heads": True}, "num_attention_heads is True"),
        ({"num_key_value_heads": 5}, "32 heads cannot share 5 kv_heads"),
        ({"hybrid_override_pattern": "M*M-"}, "state-space layers"),
        ({"layer_types": ["mamba"] * 32}, "layer_types names 'mamba'"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types has 3 entries for 32 layers"),
        ({"layer_types": ["sliding_attention"] * 32}, "no sliding_window says how wide"),
        ({"attn_type_list": [0] * 32}, "lightning attention"),
        ({"num_local_experts": 8, "num_experts_per_tok": 9}, "9 of 8 experts"),
        ({"expert_dtype": "fp5"}, "expert_dtype is 'fp5'"),
    ],
)
def test_what_it_cannot_tell_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(GapscopeError, match=message) as refused:
        from_huggingface(LLAMA | change)
    assert str(refused.value).startswith("The Hugging Face config of ")
    assert "\n" not in str(refused.value)


def test_what_only_looks_like_an_encoder_or_like_experts_is_read() -> None:
    in_full = {"is_decoder": False, "is_encoder_decoder": False, "top_k": 50, "num_local_experts": 0}
    assert from_huggingface(LLAMA | in_full | {"num_experts_per_tok": 2}) == from_huggingface(LLAMA)
    decoder = LLAMA | {"model_type": "modernbert-decoder", "architectures": ["ModernBertDecoderForCausalLM"]}
    assert from_huggingface(decoder).layers == 32


def test_a_dtype_that_is_not_known_is_not_one_that_is_not_stated() -> None:
    odd = from_huggingface(LLAMA | {"torch_dtype": "float128"})
    assert odd.weight_dtype == "bf16"
    assert odd.sources["weight_dtype"] == "torch_dtype is 'float128', which is not known: taken as bf16"
    silent = {key: value for key, value in LLAMA.items() if key not in ("torch_dtype", "dtype")}
    assert from_huggingface(silent).sources["weight_dtype"] == "torch_dtype is not stated: taken as bf16"
    quantized = from_huggingface(silent | {"quantization_config": {"quant_method": "fp8"}})
    assert (quantized.weight_dtype, quantized.sources.get("weight_dtype")) == ("fp8", None)  # nothing was assumed


def leaves(config: dict[str, Any]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for key, value in config.items():
        found.append((key,))
        if isinstance(value, dict):
            found += [(key, *path) for path in leaves(value)]
    return found


def altered(config: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    inner = altered(config[path[0]], path[1:], value) if len(path) > 1 else value
    return config | {path[0]: inner}


@pytest.mark.parametrize(
    "name", ["kimi-k2.5", "kimi-k3", "minimax-m3", "qwen3.5-35b-a3b", "deepseek-v4-pro", "glm-5.2"]
)
@pytest.mark.parametrize(
    "value", [None, -1, 0, 1, 10**12, 0.5, float("nan"), float("inf"), True, "x", "[1]", [], [[]], [1], {}, {"a": []}]
)
def test_whatever_a_field_holds_it_is_read_or_refused(name: str, value: Any) -> None:
    for path in leaves(CONFIGS[name]):
        with contextlib.suppress(GapscopeError):
            from_huggingface(altered(CONFIGS[name], path, value))
