"""KV bytes per token and GPU by component: published figures, and arithmetic by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.deployment import Deployment, KvBytes, kv_bytes_per_token, load_model, load_part

H200 = load_part("h200-sxm")


def kv(model: str, **how: object) -> KvBytes:
    return kv_bytes_per_token(Deployment(load_model(model), H200, **how))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "tp", "dtype", "expected"),
    [
        ("glm-5.2", 8, "fp8", 47_616),  # vLLM says 47,805
        ("glm-5.2", 8, "bf16", 92_544),  # vLLM says 92,815
        ("minimax-m3", 8, "fp8", 29_952),  # vLLM says 30,023
        ("minimax-m3", 8, "bf16", 45_312),  # vLLM says 45,398
        ("deepseek-v3", 8, "fp8", 35_136),
        ("deepseek-r1", 8, "fp8", 35_136),
        ("deepseek-v3", 8, "bf16", 70_272),
        ("llama-3.1-8b", 1, "bf16", 131_072),
    ],
)
def test_published_bytes_per_token(model: str, tp: int, dtype: str, expected: int) -> None:
    assert kv(model, tp=tp, kv_dtype=dtype).per_token == expected


def test_components_of_minimax_m3() -> None:
    found = kv("minimax-m3", tp=8, kv_dtype="fp8")
    assert found.attention == 15_360  # 60 layers, one of 4 KV heads on each GPU, 2 * 128 bytes
    assert found.index == 57 * 128 * 2  # bf16 whatever the KV dtype, one key for all heads


def test_index_keys_and_latents_are_not_divided_by_tp() -> None:
    one, eight = kv("glm-5.2", tp=1), kv("glm-5.2", tp=8)
    assert one == eight
    assert eight.index == 21 * 128  # fp8, on 21 of 78 layers
    assert kv("deepseek-v3", tp=1).per_token == kv("deepseek-v3", tp=8).per_token


def test_keys_and_values_are_divided_down_to_one_head() -> None:
    assert kv("llama-3.1-8b", tp=4).per_token == 131_072 / 4
    assert kv("llama-3.1-8b", tp=8).per_token == kv("llama-3.1-8b", tp=16).per_token == 131_072 / 8


def test_an_attention_rank_holds_whole_requests() -> None:
    assert kv("llama-3.1-8b", tp=8, attention_dp=8).per_token == 131_072
    assert kv("llama-3.1-8b", tp=8, attention_dp=2).per_token == 131_072 / 4


def test_decode_context_parallelism_divides_what_grows() -> None:
    one, eight = kv("kimi-k3", tp=8), kv("kimi-k3", tp=8, dcp=8)
    assert one.attention == 24 * 576 * 2
    assert eight.attention == one.attention / 8
    assert eight.state == one.state
    assert kv("glm-5.2", tp=8, dcp=4).per_token == 92_544 / 4


def test_stages_divide_layers_rounded_up() -> None:
    assert kv("deepseek-v3", pp=4).attention == 16 * 576 * 2  # 61 layers: the first stage has 16
    assert kv("llama-3.1-8b", pp=4).per_token == 131_072 / 4


def test_linear_layers_keep_a_state_per_sequence() -> None:
    found = kv("qwen3.5-35b-a3b", tp=2)
    assert found.attention == 10 * 1 * 2 * 256 * 2  # the 10 full layers alone; one KV head per GPU
    # Per layer: 16 value heads of 128 x 128 in fp32, and three inputs of 2 * 8 + 16 channels of 128 heads in bf16.
    assert found.state == 30 * (16 * 128 * 128 * 4 + (2 * 8 + 16) * 128 * 3 * 2)
    assert found.per_sequence(1000) == 1000 * found.attention + found.state


def test_windows_fill_and_stop() -> None:
    found = kv("gpt-oss-120b")
    per_layer = 8 * 2 * 64 * 2
    assert (found.attention, found.window, found.window_tokens) == (18 * per_layer, 18 * per_layer, 128)
    assert found.per_sequence(100) == 100 * 36 * per_layer
    assert found.per_sequence(1000) == (1000 + 128) * 18 * per_layer
    assert found.per_sequence(1001, block_size=16) == (1008 + 128) * 18 * per_layer


def test_whole_blocks_are_taken() -> None:
    found = kv("llama-3.1-8b")
    assert found.per_sequence(1, block_size=16) == found.per_sequence(16, block_size=16) == 16 * 131_072
    assert found.per_sequence(17, block_size=16) == 32 * 131_072


def test_index_keys_have_their_own_dtype() -> None:
    model = load_model("minimax-m3")
    assert model.sparse is not None
    narrower = replace(model, sparse=replace(model.sparse, index_dtype="fp8"))
    found = kv_bytes_per_token(Deployment(narrower, H200, tp=8, kv_dtype="fp8"))
    assert found.per_token == 15_360 + 57 * 128
