"""Hugging Face configs of the packaged models, reduced to what a shape is made of, as their files spell it."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]


def _llama(hidden: int, layers: int, heads: int, wide: int) -> Config:
    """No head_dim: Llama's configs leave it to hidden_size / num_attention_heads."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def _qwen3(hidden: int, layers: int, heads: int, wide: int, tied: bool = False) -> Config:
    return {
        "model_type": "qwen3",
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "max_window_layers": layers,
        "sliding_window": None,
        "use_sliding_window": False,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
    }


def _qwen3_moe(
    hidden: int, layers: int, heads: int, kv: int, experts: tuple[int, int, int], dense: int, context: int
) -> Config:
    """``intermediate_size`` is stated and no layer uses it."""
    count, topk, width = experts
    return _qwen3(hidden, layers, heads, dense) | {
        "model_type": "qwen3_moe",
        "num_key_value_heads": kv,
        "num_experts": count,
        "num_experts_per_tok": topk,
        "moe_intermediate_size": width,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "max_position_embeddings": context,
    }


def _qwen3_5(hidden: int, layers: int, heads: int, v_heads: int, experts: tuple[int, int, int]) -> Config:
    """A model that sees images too: the decoder is nested."""
    count, topk, width = experts
    kinds = ["full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(layers)]
    return {
        "model_type": "qwen3_5_moe",
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "qwen3_5_moe_text",
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "attn_output_gate": True,
            "layer_types": kinds,
            "full_attention_interval": 4,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": v_heads,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "mamba_ssm_dtype": "float32",
            "num_experts": count,
            "num_experts_per_tok": topk,
            "moe_intermediate_size": width,
            "shared_expert_intermediate_size": width,
            "mtp_num_hidden_layers": 1,
            "vocab_size": 248320,
            "max_position_embeddings": 262144,
            "dtype": "bfloat16",
        },
        "vision_config": {"depth": 27, "hidden_size": 1152},
    }


_DEEPSEEK: Config = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_nextn_predict_layers": 1,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}

_KIMI_K2 = _DEEPSEEK | {
    "model_type": "kimi_k2",
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_routed_experts": 384,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
    "vocab_size": 163840,
    "max_position_embeddings": 131072,
}


def _deepseek_v4(hidden: int, layers: int, heads: int, ratios: list[int], rest: Config) -> Config:
    return {
        "model_type": "deepseek_v4",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "o_lora_rank": 1024,
        "compress_ratios": ratios,
        "sliding_window": 128,
        "index_n_heads": 64,
        "index_head_dim": 128,
        "n_shared_experts": 1,
        "num_experts_per_tok": 6,
        "num_hash_layers": 3,
        "num_nextn_predict_layers": 1,
        "vocab_size": 129280,
        "max_position_embeddings": 1048576,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "expert_dtype": "fp4",
        "quantization_config": {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]},
        **rest,
    }


_GLM_5: Config = {
    "model_type": "glm_moe_dsa",
    "hidden_size": 6144,
    "intermediate_size": 12288,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "head_dim": 64,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "q_lora_rank": 2048,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "index_topk": 2048,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "num_nextn_predict_layers": 1,
    "vocab_size": 154880,
    "max_position_embeddings": 202752,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}

_M3_LAYERS = [0] * 3 + [1] * 57

CONFIGS: dict[str, Config] = {
    "llama-3.1-8b": _llama(4096, 32, 32, 14336),
    "llama-3.1-70b": _llama(8192, 80, 64, 28672),
    "qwen3-0.6b": _qwen3(1024, 28, 16, 3072, tied=True),
    "qwen3-1.7b": _qwen3(2048, 28, 16, 6144, tied=True),
    "qwen3-4b": _qwen3(2560, 36, 32, 9728, tied=True),
    "qwen3-8b": _qwen3(4096, 36, 32, 12288),
    "qwen3-14b": _qwen3(5120, 40, 40, 17408),
    "qwen3-32b": _qwen3(5120, 64, 64, 25600),
    "qwen3-30b-a3b": _qwen3_moe(2048, 48, 32, 4, (128, 8, 768), 6144, 40960),
    "qwen3-235b-a22b": _qwen3_moe(4096, 94, 64, 4, (128, 8, 1536), 12288, 40960),
    "qwen3-coder-480b": _qwen3_moe(6144, 62, 96, 8, (160, 8, 2560), 8192, 262144),
    "qwen3.5-35b-a3b": _qwen3_5(2048, 40, 16, 32, (256, 8, 512)),
    "qwen3.5-397b-a17b": _qwen3_5(4096, 60, 32, 64, (512, 10, 1024)),
    "deepseek-v3": _DEEPSEEK,
    "deepseek-r1": _DEEPSEEK,
    "deepseek-v3.2": _DEEPSEEK
    | {"model_type": "deepseek_v32", "index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128},
    "deepseek-v4-flash": _deepseek_v4(
        4096,
        43,
        64,
        [0, 0, *[4, 128] * 20, 4, 0],
        {
            "q_lora_rank": 1024,
            "o_groups": 8,
            "index_topk": 512,
            "n_routed_experts": 256,
            "moe_intermediate_size": 2048,
        },
    ),
    "deepseek-v4-pro": _deepseek_v4(
        7168,
        61,
        128,
        [128, 128, *[4, 128] * 29, 4, 0],
        {
            "q_lora_rank": 1536,
            "o_groups": 16,
            "index_topk": 1024,
            "n_routed_experts": 384,
            "moe_intermediate_size": 3072,
        },
    ),
    "glm-4.7": {
        "model_type": "glm4_moe",
        "hidden_size": 5120,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 92,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "n_routed_experts": 160,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "num_nextn_predict_layers": 1,
        "vocab_size": 151552,
        "max_position_embeddings": 202752,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    },
    "glm-5": _GLM_5,
    "glm-5.2": _GLM_5
    | {
        "max_position_embeddings": 1048576,
        "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 75,
        "indexer_types": ["full" if layer < 3 or (layer >= 6 and layer % 4 == 2) else "shared" for layer in range(78)],
    },
    "minimax-m2.5": {
        "model_type": "minimax_m2",
        "hidden_size": 3072,
        "intermediate_size": 1536,
        "shared_intermediate_size": 0,
        "num_hidden_layers": 62,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_local_experts": 256,
        "num_experts_per_tok": 8,
        "attn_type_list": [1] * 62,
        "use_mtp": True,
        "num_mtp_modules": 3,
        "mtp_transformer_layers": 1,
        "vocab_size": 200064,
        "max_position_embeddings": 196608,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "quantization_config": {
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"],
        },
    },
    "minimax-m3": {
        "model_type": "minimax_m3_vl",
        "text_config": {
            "model_type": "minimax_m3",
            "hidden_size": 6144,
            "intermediate_size": 3072,
            "dense_intermediate_size": 12288,
            "shared_intermediate_size": 3072,
            "num_hidden_layers": 60,
            "num_attention_heads": 64,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "n_shared_experts": 1,
            "moe_layer_freq": _M3_LAYERS,
            "attention_output_gate": False,
            "sparse_attention_config": {
                "use_sparse_attention": True,
                "sparse_index_dim": 128,
                "sparse_num_index_heads": 4,
                "sparse_topk_blocks": 16,
                "sparse_block_size": 128,
                "sparse_attention_freq": _M3_LAYERS,
            },
            "vocab_size": 200064,
            "max_position_embeddings": 1048576,
            "tie_word_embeddings": False,
        },
        "torch_dtype": "bfloat16",
    },
    "kimi-k2": _KIMI_K2,
    "kimi-k2.5": {
        "model_type": "kimi_k25",
        "text_config": {
            **_KIMI_K2,
            "max_position_embeddings": 262144,
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
                "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|down)_proj.*"],
            },
        },
    },
    "kimi-k3": {
        "model_type": "kimi_k3",
        "text_config": {
            "model_type": "kimi_linear",
            "hidden_size": 7168,
            "intermediate_size": 33792,
            "moe_intermediate_size": 3072,
            "routed_expert_hidden_size": 3584,
            "num_hidden_layers": 93,
            "num_attention_heads": 96,
            "num_key_value_heads": 96,
            "num_experts": 896,
            "num_experts_per_token": 16,
            "num_shared_experts": 2,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "mla_use_output_gate": True,
            "linear_attn_config": {
                "full_attn_layers": [*range(4, 93, 4), 93],
                "kda_layers": [layer for layer in range(1, 93) if layer % 4],
                "head_dim": 128,
                "num_heads": 96,
                "short_conv_kernel_size": 4,
            },
            "num_nextn_predict_layers": 0,
            "vocab_size": 163840,
            "max_position_embeddings": 1048576,
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "format": "mxfp4-pack-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 32}}},
                "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"],
            },
        },
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    },
}

for _name, _layers, _count in (("gpt-oss-20b", 24, 32), ("gpt-oss-120b", 36, 128)):
    CONFIGS[_name] = {
        "model_type": "gpt_oss",
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": _layers,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": _count,
        "num_experts_per_tok": 4,
        "experts_per_token": 4,
        "layer_types": ["sliding_attention", "full_attention"] * (_layers // 2),
        "sliding_window": 128,
        "vocab_size": 201088,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "quantization_config": {
            "quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens"],
        },
    }
