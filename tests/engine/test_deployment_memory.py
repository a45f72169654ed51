"""Parameters, weights on a GPU, and the memory ledger: published sizes and arithmetic by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.cli import main as cli
from engine.deployment import (
    Deployment,
    deployment_of,
    load_model,
    load_part,
    memory_ledger,
    memory_notes,
    model_names,
    parameters,
    weight_bytes,
)
from engine.errors import GapscopeError
from engine.knobs.resolve import defaults
from engine.timing.analytic import StepModel

GIB = 1 << 30
H100 = load_part("h100-sxm")
LLAMA = load_model("llama-3.1-8b")
LLAMA_PARAMETERS = {
    "embedding": 128_256 * 4096,
    "attention": 32 * 4096 * (4096 + 2 * 1024 + 4096),
    "dense_mlp": 32 * 3 * 4096 * 14_336,
    "norms": (2 * 32 + 1) * 4096,
    "head": 128_256 * 4096,
}


def total(model: str) -> int:
    """Parameters without MTP layers, as sizes are stated."""
    return sum(count for name, count in parameters(load_model(model)).items() if name != "mtp")


@pytest.mark.parametrize(
    ("model", "billions", "rounding"),
    [
        ("llama-3.1-8b", 8.03, 0.005),
        ("llama-3.1-70b", 70.6, 0.05),
        ("qwen3-0.6b", 0.6, 0.05),
        ("qwen3-1.7b", 1.7, 0.05),
        ("qwen3-4b", 4.0, 0.05),
        ("qwen3-8b", 8.2, 0.05),
        ("qwen3-14b", 14.8, 0.05),
        ("qwen3-32b", 32.8, 0.05),
        ("qwen3-30b-a3b", 30.5, 0.05),
        ("qwen3-235b-a22b", 235, 0.5),
        ("qwen3-coder-480b", 480, 0.5),
        ("deepseek-v3", 671, 0.5),
        ("deepseek-v4-flash", 284, 0.5),
        ("gpt-oss-20b", 21, 0.5),
        ("gpt-oss-120b", 117, 0.5),
        ("glm-5", 744, 0.5),
        ("qwen3.5-397b-a17b", 397, 1),
    ],
)
def test_parameters_are_the_published_ones(model: str, billions: float, rounding: float) -> None:
    assert total(model) / 1e9 == pytest.approx(billions, abs=rounding)


def test_parameters_of_llama_by_hand() -> None:
    assert parameters(LLAMA) == LLAMA_PARAMETERS
    assert sum(LLAMA_PARAMETERS.values()) == 8_030_261_248  # as the checkpoint's index says


def test_parameters_of_latent_attention_by_hand() -> None:
    heads, hidden = 128, 7168
    one = (
        hidden * 1536  # to the latent of queries
        + 1536 * heads * (128 + 64)
        + hidden * (512 + 64)  # to the latent of keys and values
        + 512 * heads * (128 + 128)
        + heads * 128 * hidden
    )
    found = parameters(load_model("deepseek-v3"))
    assert found["attention"] == 61 * one
    assert found["experts"] == 58 * 256 * 3 * hidden * 2048
    assert found["shared_experts"] == 58 * 3 * hidden * 2048
    assert found["dense_mlp"] == 3 * 3 * hidden * 18_432
    assert found["mtp"] == one + (257 * 3 * hidden * 2048) + hidden * 256 + 2 * hidden * hidden


def test_weights_of_one_gpu_are_the_parameters() -> None:
    found = weight_bytes(Deployment(LLAMA, H100))
    assert found == {name: 2.0 * count for name, count in LLAMA_PARAMETERS.items()}
    half = weight_bytes(Deployment(LLAMA, H100, weight_dtype="fp8"))
    assert half["attention"] == LLAMA_PARAMETERS["attention"]
    assert half["head"] == 2.0 * LLAMA_PARAMETERS["head"]  # quantised checkpoints leave the head as it is


def test_tensor_parallelism_divides_what_it_can() -> None:
    one, four = (weight_bytes(Deployment(LLAMA, H100, tp=tp)) for tp in (1, 4))
    assert {name: one[name] / four[name] for name in one} == {
        "embedding": 4,
        "attention": 4,
        "dense_mlp": 4,
        "norms": 1,
        "head": 4,
    }
    # Beyond the 8 KV heads each GPU keeps one: 2 query heads, a key and a value head, 2 heads' output.
    sixteen = weight_bytes(Deployment(LLAMA, H100, tp=16))
    assert sixteen["attention"] == 32 * 4096 * 128 * (2 + 1 + 1 + 2) * 2


def test_latents_and_indexers_are_on_every_gpu() -> None:
    model = load_model("deepseek-v3.2")
    one, eight = (weight_bytes(Deployment(model, H100, tp=tp, weight_dtype="fp8")) for tp in (1, 8))
    whole = 61 * 7168 * (1536 + 576)
    assert eight["attention"] - whole == (one["attention"] - whole) / 8
    assert eight["indexer"] == one["indexer"] == 61 * (1536 * 64 * 128 + 7168 * (128 + 64))
    assert eight["experts"] == one["experts"] / 8


def test_attention_ranks_share_the_experts_and_not_the_heads() -> None:
    model = load_model("deepseek-v3")
    shared = weight_bytes(Deployment(model, H100, tp=8, ep=8, attention_dp=8, weight_dtype="fp8"))
    alone = weight_bytes(Deployment(model, H100, tp=1, weight_dtype="fp8"))
    assert shared["attention"] == alone["attention"]
    assert shared["embedding"] == alone["embedding"]
    assert shared["experts"] == alone["experts"] / 8


def test_experts_have_their_own_format() -> None:
    found = weight_bytes(Deployment(load_model("gpt-oss-120b"), H100, expert_dtype="mxfp4"))
    assert found["experts"] == 36 * 128 * 3 * 2880 * 2880 * (0.5 + 1 / 32)
    assert found["attention"] == 36 * 2880 * 64 * (64 + 8 + 8 + 64) * 2


def test_stages_hold_their_layers_and_the_embedding_or_the_head() -> None:
    found = weight_bytes(Deployment(LLAMA, H100, pp=2))
    assert found["attention"] == LLAMA_PARAMETERS["attention"]
    assert "head" not in found
    assert "mtp" not in weight_bytes(Deployment(load_model("deepseek-v3"), H100, tp=8))
    assert "mtp" in weight_bytes(Deployment(load_model("deepseek-v3"), H100, tp=8), with_mtp=True)


def test_tied_embeddings_are_held_once() -> None:
    assert "head" not in weight_bytes(Deployment(load_model("qwen3-0.6b"), H100))


def test_the_ledger_of_llama_by_hand() -> None:
    ledger = memory_ledger(
        Deployment(LLAMA, H100), memory_fraction=0.9, token_budget=2048, context=32_768, graphs_gib=0.5
    )
    # Two layers of: input and sum, 32 + 8 heads of keys' and of values' width, gate, up and product; two bytes each.
    activations = 2 * 2048 * 2 * (2 * 4096 + 32 * 256 + 8 * 256 + 3 * 14_336)
    assert ledger.activation_bytes == activations
    pool = 0.9 * 80 * GIB - 2 * sum(LLAMA_PARAMETERS.values()) - activations - 0.5 * GIB
    assert ledger.kv_pool_bytes == pytest.approx(pool, abs=1)
    assert ledger.blocks == int(pool // (16 * 131_072))
    assert ledger.sequences == pytest.approx(pool / (32_768 * 131_072))
    assert ledger.max_concurrency == 14  # 56.07 GiB for sequences of 4 GiB


def test_ranks_multiply_the_concurrency() -> None:
    model = load_model("deepseek-v3")
    how = {"context": 65_536, "graphs_gib": 0.0}
    one = memory_ledger(Deployment(model, load_part("mi355x"), tp=8, ep=8, weight_dtype="fp8"), **how)
    ranks = memory_ledger(Deployment(model, load_part("mi355x"), tp=8, ep=8, attention_dp=8, weight_dtype="fp8"), **how)
    assert ranks.max_concurrency == 8 * int(ranks.sequences)
    assert one.max_concurrency == int(one.sequences)
    assert ranks.weight_bytes > one.weight_bytes


def test_graphs_are_unknown_unless_there_are_none() -> None:
    assert memory_ledger(Deployment(LLAMA, H100)).graphs_bytes is None
    assert memory_ledger(Deployment(LLAMA, H100, graph="none")).graphs_bytes == 0


def test_sglangs_fraction_holds_weights_and_kv_alone() -> None:
    ledger = memory_ledger(Deployment(LLAMA, H100), memory_fraction=0.88, engine="sglang", graphs_gib=3)
    assert ledger.kv_pool_bytes == pytest.approx(0.88 * 80 * GIB - 2 * sum(LLAMA_PARAMETERS.values()), abs=1)


def test_windows_are_counted_as_they_fill() -> None:
    deployment = Deployment(load_model("gpt-oss-120b"), H100, expert_dtype="mxfp4")
    ledger = memory_ledger(deployment, context=131_072)
    each = (131_072 + 128) * 18 * 2048
    assert ledger.sequences == pytest.approx(ledger.kv_pool_bytes / each)
    assert ledger.blocks == int(ledger.sequences * 131_072 / 16)


def test_what_does_not_fit_says_by_how_much() -> None:
    ledger = memory_ledger(Deployment(load_model("llama-3.1-70b"), H100))
    assert ledger.kv_pool_bytes < 0
    assert (ledger.blocks, ledger.max_concurrency) == (0, 0)


def test_the_capacity_has_no_default() -> None:
    dark = replace(H100, hbm_gib=None)
    with pytest.raises(GapscopeError, match="The HBM capacity of h100-sxm is not known"):
        memory_ledger(Deployment(LLAMA, dark))
    assert memory_ledger(Deployment(LLAMA, dark), hbm_gib=80) == memory_ledger(Deployment(LLAMA, H100))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"memory_fraction": 0}, "A memory fraction of 0"),
        ({"memory_fraction": 1.1}, "A memory fraction of 1.1"),
        ({"block_size": 0}, "expected each above 0"),
        ({"hbm_gib": float("nan")}, "capacity nan GiB"),
        ({"hbm_gib": float("inf")}, "capacity inf GiB"),
        ({"graphs_gib": -1}, "graphs 0 or more"),
        ({"engine": "other"}, "Unknown engine 'other'"),
    ],
)
def test_arguments_out_of_range_are_refused(how: dict[str, object], message: str) -> None:
    with pytest.raises(GapscopeError, match=message):
        memory_ledger(Deployment(LLAMA, H100), **how)  # type: ignore[arg-type]


def test_a_context_that_is_not_known_is_asked_for() -> None:
    with pytest.raises(GapscopeError, match=r"The longest context of llama-3\.1-8b is not known"):
        memory_ledger(Deployment(replace(LLAMA, max_context=None), H100))


@pytest.mark.parametrize("name", model_names())
def test_every_model_has_a_ledger_on_eight_gpus(name: str) -> None:
    model = load_model(name)
    deployment = Deployment(
        model,
        load_part("mi355x"),
        tp=8,
        ep=8 if model.experts else 1,
        weight_dtype=model.weight_dtype,
        expert_dtype=model.expert_dtype,
    )
    ledger = memory_ledger(deployment, context=4096)
    assert ledger.weight_bytes > 0
    assert ledger.activation_bytes > 0
    assert ledger.kv_pool_bytes < ledger.usable_bytes


# -- deployments of knobs --------------------------------------------------------------------------------------------


def test_knobs_take_the_checkpoints_own_formats() -> None:
    found = deployment_of(defaults() | {"part": "b200-sxm", "model_preset": "deepseek-v4-flash", "tp": 4, "ep": 2})
    assert (found.model.name, found.part.name, found.tp, found.ep) == ("deepseek-v4-flash", "b200-sxm", 4, 2)
    assert (found.weight_dtype, found.expert_dtype, found.kv_dtype) == ("fp8", "mxfp4", "bf16")
    assert (found.graph, found.verify_width) == ("full", 1)


def test_a_weight_dtype_that_is_set_is_that_of_the_experts_too() -> None:
    named = {"part": "b200-sxm", "model_preset": "deepseek-v4-flash"}
    assert deployment_of(defaults() | named | {"weight_dtype": "bf16"}).expert_dtype is None
    both = deployment_of(defaults() | named | {"weight_dtype": "bf16", "expert_dtype": "nvfp4"})
    assert (both.weight_dtype, both.expert_dtype) == ("bf16", "nvfp4")


def test_drafts_widen_a_pass() -> None:
    named = {"part": "b200-sxm", "model_preset": "deepseek-v3", "spec_method": "mtp", "spec_tokens": 3}
    assert deployment_of(defaults() | named | {"graph_mode": "piecewise"}).verify_width == 4


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        ("llama-3.1-8b", {"tp": 8, "ep": 8}, "Knob ep=8: llama-3.1-8b has no experts; expected 1."),
        ("llama-3.1-8b", {"expert_dtype": "fp8"}, "Knob expert_dtype=fp8: llama-3.1-8b has no experts; expected own."),
        (
            "llama-3.1-8b",
            {"router_balance": 0.5},
            "Knob router_balance=0.5: llama-3.1-8b has no experts; expected 1.0.",
        ),
        (
            "llama-3.1-8b",
            {"sparse_cost_scale": 5.0},
            "Knob sparse_cost_scale=5: llama-3.1-8b has no indexer that picks a topk of the whole context; expected 1.",
        ),
        (
            "llama-3.1-8b",
            {"spec_method": "mtp", "spec_tokens": 2},
            "Knob spec_method=mtp: llama-3.1-8b has no MTP layers; expected another method, or what a draft costs "
            "(spec_draft_cost).",
        ),
    ],
)
def test_knobs_that_say_something_of_what_a_model_lacks_are_refused(
    model: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(GapscopeError) as refused:
        deployment_of(defaults() | {"part": "h100-sxm", "model_preset": model} | changes)
    assert str(refused.value) == message


@pytest.mark.parametrize("name", model_names())
def test_a_cost_of_picking_is_refused_exactly_where_it_changes_nothing(name: str) -> None:
    knobs = defaults() | {"part": "mi355x", "model_preset": name, "timing": "analytic", "tp": 8}
    fused = StepModel(deployment_of(knobs)).decode_ns(8, 30_000)
    unfused = StepModel(replace(deployment_of(knobs), sparse_cost_scale=5.0)).decode_ns(8, 30_000)
    try:
        deployment_of(knobs | {"sparse_cost_scale": 5.0})
    except GapscopeError:
        assert unfused == fused
    else:
        assert unfused > fused


def test_more_blocks_than_the_memory_holds_are_told() -> None:
    knobs = defaults() | {"part": "h100-sxm", "model_preset": "llama-3.1-8b", "max_num_batched_tokens": 8192}
    ledger = memory_ledger(Deployment(LLAMA, H100), memory_fraction=0.9, token_budget=8192, block_size=16)
    knobs["block_size"] = 16
    assert memory_notes(knobs | {"kv_blocks": ledger.blocks + 1}) == []  # one of them is block 0
    (note,) = memory_notes(knobs | {"kv_blocks": ledger.blocks + 2})
    assert f"asks for {ledger.blocks + 1:,} usable KV blocks" in note
    assert f"llama-3.1-8b on h100-sxm has room for {ledger.blocks:,} of 16 tokens" in note
    assert memory_notes(knobs | {"kv_blocks": 10**9, "part": "", "model_preset": ""}) == []


def test_a_dry_run_tells_it(capsys: pytest.CaptureFixture[str]) -> None:
    samples = Path(__file__).parents[2] / "sample_runs"
    named = ["timing=analytic", "part=h100-sxm", "model_preset=llama-3.1-8b", "kv_blocks=999999999"]
    arguments = ["replay", "--like", "ample8", "--dry-run", "--store", str(samples)]
    assert cli.main([*arguments, *(word for knob in named for word in ("--set", knob))]) == 0
    assert "Note: Knob kv_blocks=999999999 asks for 999,999,998 usable KV blocks" in capsys.readouterr().err
