"""The roofline of a pass: prices by hand, and how it must behave."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.deployment import (
    Attention,
    Deployment,
    Experts,
    LinearAttention,
    ModelShape,
    load_model,
    load_part,
    model_names,
)
from engine.errors import GapscopeError
from engine.timing import PassQueries
from engine.timing.analytic import PARTS, StepModel
from engine.timing.analytic.collectives import allreduce, alltoall
from engine.timing.analytic.experts import distinct_experts, experts_hit
from engine.timing.analytic.fixed_costs import kernels
from engine.timing.analytic.roofline import Rates, format_of
from tests.engine.analytic_cases import DENSE, MOE, PART, decode, deployed, queries


def part_of(step: StepModel, name: str, *rows) -> float:
    return float(step.parts(queries(*rows))[name][0])


# By hand: 500 bytes, 250 elementwise bytes and 50,000 operations per ns; a kernel 1 us.


def test_a_decode_by_hand():
    """One request after 1,000 tokens: every product waits for its weights.

    qkv 1000 x 2000: (4,000,000 + 2,000 + 4,000) / 500 = 8,012; o 1000 x 1000: 4,008; gate and up 1000 x 6000: 24,028;
    down 3000 x 1000: 12,016; two layers of each. Head 1000 x 5000: 20,024.
    """
    parts = {name: float(value[0]) for name, value in StepModel(deployed(DENSE)).parts(decode(1, 1000)).items()}
    assert tuple(parts) == PARTS
    assert parts["projections"] == 2 * (8_012 + 4_008)
    assert parts["mlp"] == 2 * (24_028 + 12_016) + 2 * 3 * 3000 * 2 / 250
    assert parts["norms"] == 2 * 8 * 1000 * 2 / 250
    assert parts["decode_attention"] == 2 * (1001 * 2 * 500 * 2 + 4 * 500 * 2) / 500
    assert parts["head"] == 20_024
    assert parts["sampling"] == 2 * 5000 * 2 / 250
    assert parts["kernels"] == (2 * (4 + 4 + 3) + 6) * 1000
    assert parts["host"] == 3000
    assert sum(parts.values()) == StepModel(deployed(DENSE)).decode_ns(1, 1000) == 155_528


def test_a_prefill_by_hand():
    """4,000 new tokens: every product is arithmetic, 2 m k n / 50,000, and 4,000 x 4,001 / 2 pairs cost 4,000 each."""
    step = StepModel(deployed(DENSE))
    assert part_of(step, "projections", (1, 4000, 0, 0, 0)) == 2 * (320_000 + 160_000)
    assert part_of(step, "mlp", (1, 4000, 0, 0, 0)) == 2 * (960_000 + 480_000) + 4000 * 144
    assert part_of(step, "prefill_attention", (1, 4000, 0, 0, 0)) == 2 * 4000 * 4001 / 2 * 4000 / 50_000
    # After 1,000 tokens, two prompts of 2,000: 2 x (2,000 x 1,000 + 2,000 x 2,001 / 2) pairs.
    pairs = 2 * (2000 * 1000 + 2000 * 2001 / 2)
    assert part_of(step, "prefill_attention", (2, 4000, 2000, 0, 0)) == pytest.approx(2 * pairs * 4000 / 50_000)
    assert step.prefill_ns(2, 4000, 1000) == pytest.approx(float(step.totals(queries((2, 4000, 2000, 0, 0)))[0]))


def test_distinct_experts():
    assert distinct_experts(8, 2, 3) == pytest.approx(8 * (1 - 0.75**3))
    hit = experts_hit(8, 2, 1.0)
    assert [hit(float(n)) for n in range(5)] == pytest.approx([0, 2, 3.5, 4.625, 5.46875])
    assert hit(1e9) == 8.0
    assert experts_hit(8, 2, 0.5)(1e6) == 4.0
    assert experts_hit(8, 2, 0.1)(1.0) == 2.0  # a token hits its own
    assert experts_hit(4, 4, 1.0)(3.0) == 4.0


def test_experts_by_hand():
    """One token hits 2 of 8 experts of 3 x 1000 x 500 weights; a grouped product of 2 reaches 1 - exp(-1/2)."""
    found = part_of(StepModel(deployed(MOE)), "experts", (0, 0, 0, 1, 100))
    products = (2 * 3e6 + 2 * (2000 + 500) * 2 + 2 * (1000 + 1000) * 2) / 500
    moved = ((1 + 2) * 1000 * 2 + 3 * 2 * 500 * 2 + 8 * 8) / 250
    router = (1000 * 8 * 2 + 2000 + 16) / 500
    assert found == pytest.approx(2 * (products / (1 - np.exp(-0.5)) + moved + router))


def test_latent_attention_by_hand():
    """A token keeps 512 + 64 values for all heads; decoding reads them, whatever the tensor parallelism."""
    v3 = load_model("deepseek-v3")
    for tp in (1, 8):
        step = StepModel(deployed(v3, replace(PART, bf16_tflops=1e9), tp=tp))
        moved = 128 / tp * (576 + 512) * 2
        assert part_of(step, "decode_attention", (0, 0, 0, 4, 40_000)) == pytest.approx(
            61 * (40_004 * 576 * 2 + 4 * moved) / 500
        )
    # Arithmetic: scores 576 and values 512 wide on each of 128 heads.
    step = StepModel(deployed(v3, replace(PART, hbm_tb_s=1e9)))
    assert part_of(step, "decode_attention", (0, 0, 0, 4, 40_000)) == pytest.approx(
        61 * 40_004 * 2 * 128 * (576 + 512) / 50_000
    )


def test_window_layers_see_their_window():
    """Of 2 layers one sees 100 tokens: a decode after 1,000 reads 101 there, and new tokens see 100 at most."""
    step = StepModel(deployed(replace(DENSE, window_layers=1, window=100)))
    own = 4 * 500 * 2
    assert part_of(step, "decode_attention", (0, 0, 0, 1, 1000)) == ((1001 + 101) * 2000 + 2 * own) / 500
    pairs = 300 * 301 / 2 + (100 * 101 / 2 + 200 * 100)
    arithmetic = StepModel(deployed(replace(DENSE, window_layers=1, window=100), replace(PART, hbm_tb_s=1e9)))
    assert part_of(arithmetic, "prefill_attention", (1, 300, 0, 0, 0)) == pytest.approx(pairs * 4000 / 50_000)
    # After 60: 40 queries still see less than the window.
    pairs = 300 * 60 + 300 * 301 / 2 + (40 * 60 + 40 * 41 / 2 + 260 * 100)
    assert part_of(arithmetic, "prefill_attention", (1, 300, 60, 0, 0)) == pytest.approx(pairs * 4000 / 50_000)


def test_linear_layers_cost_the_same_at_any_context():
    linear = LinearAttention(2, k_heads=2, v_heads=4, head_dim=100, conv_width=4)
    step = StepModel(deployed(replace(DENSE, linear=linear)))
    near, far = (step.parts(decode(3, context)) for context in (10, 100_000))
    assert far["decode_attention"] == near["decode_attention"] == 0.0
    assert far["linear"] == near["linear"]
    # State of 4 x 100 x 100, and 3 inputs of 800 channels, read and written per sequence; 1000 x 1208 and 400 x 1000.
    states = 2 * 2 * (40_000 + 2400) * 2 / 500
    products = (1000 * 1208 * 2 + 3 * (2000 + 2416) + 400 * 1000 * 2 + 3 * (800 + 2000)) / 500
    convolution = 3 * 2 * 800 * 2 / 250
    assert near["linear"][0] == pytest.approx(2 * products + 2 * convolution + 3 * states)


def test_formats_on_a_part():
    assert format_of("fp8", PART).tflops == 200
    assert format_of("mxfp4", PART) == format_of("mxfp4", replace(PART, fp8_tflops=None))  # no fp4: computed in bf16
    assert (format_of("mxfp4", PART).weight_bytes, format_of("mxfp4", PART).tflops) == (0.53125, 100)
    assert format_of("mxfp4", replace(PART, fp4_tflops=400)).tflops == 400
    assert format_of("int4", replace(PART, fp4_tflops=400)).tflops == 100
    assert format_of("fp32", PART).tflops == 50
    with pytest.raises(GapscopeError, match="Unknown dtype"):
        format_of("fp7", PART)


def test_matrix_products_reach_a_share_of_their_own():
    """Products of 1,440,000 x 2 ns at a half of the peak; attention keeps the share of other arithmetic."""
    own = replace(PART, bf16_share=0.8, fp8_share=0.7)
    query = (1, 4000, 0, 0, 0)
    plain, shared = StepModel(deployed(DENSE)), StepModel(deployed(DENSE, own))
    assert part_of(shared, "projections", query) == pytest.approx(2 * (320_000 + 160_000) * 0.5 / 0.8)
    assert part_of(shared, "mlp", query) == pytest.approx(2 * (960_000 + 480_000) * 0.5 / 0.8 + 4000 * 144)
    assert part_of(shared, "prefill_attention", query) == part_of(plain, "prefill_attention", query)
    assert [format_of(dtype, own).share for dtype in ("bf16", "fp8", "int4", "fp32")] == [0.8, 0.7, 0.8, 0.8]
    # Without arithmetic of its own a format is computed in bf16; with it, and no share, by that of all other work.
    assert format_of("fp8", replace(own, fp8_tflops=None)).share == format_of("mxfp4", own).share == 0.8
    assert format_of("mxfp4", replace(own, fp4_tflops=400)).share == 0.5


def test_collectives_by_hand():
    # A ring of 4 in a domain moves 6/4 of the message at 100 GB/s.
    assert allreduce(PART, 4)(1e6) == pytest.approx(1.5e6 / 100)
    # Measured 50 GB/s up to 8 MB; beyond the ring, but no sooner than the largest measured one.
    known = replace(PART, allreduce_gb_s={4: 50.0}, allreduce_up_to_mb=8.0)
    assert allreduce(known, 4)(1e6) == 1e6 / 50
    assert allreduce(known, 4)(9e6) == 8e6 / 50
    assert allreduce(known, 4)(80e6) == pytest.approx(1.5 * 80e6 / 100)
    # 16 GPUs: in each domain of 8, then 2 x 1/2 of an eighth over a NIC of 10 / 1.04; never under 10 us.
    assert allreduce(PART, 16)(1e8) == pytest.approx(2 * 7 / 8 * 1e8 / 100 + 1e8 / 8 * 1.04 / 10)
    assert allreduce(PART, 16)(1000.0) == 10_000
    assert alltoall(PART, 8)(1e6) == pytest.approx(7 / 8 * 1e6 / 100)
    assert alltoall(replace(PART, alltoall_gb_s={8: 70.0}, alltoall_up_to_mb=32.0), 8)(1e6) == pytest.approx(
        7 / 8 * 1e6 / 70
    )
    # Two all-reduces per layer of 1,000 x 2 bytes: 2 layers x 2 x 2,000 x 1.5 / 100.
    assert part_of(StepModel(deployed(DENSE, tp=4)), "collectives", (0, 0, 0, 1, 100)) == pytest.approx(120)
    # Experts spread over all GPUs: an all-reduce, a dispatch and a combine of 2 x 2,000 bytes, three quarters away.
    spread = StepModel(deployed(MOE, tp=4, ep=4))
    assert part_of(spread, "collectives", (0, 0, 0, 1, 100)) == pytest.approx(2 * (30 + 2 * 4000 * 0.75 / 100))


def test_stages_hand_over():
    # Four stages of a 2-layer model do not exist; two hand 2,000 bytes per token over once.
    step = StepModel(deployed(DENSE, pp=2))
    assert part_of(step, "collectives", (0, 0, 0, 10, 100)) == pytest.approx(20_000 / 100 + 12_800)
    with pytest.raises(GapscopeError, match="at most as many stages"):
        StepModel(deployed(DENSE, pp=4))


def test_kernels_are_counted():
    # 36 layers x (4 + 4 + 3) + 6; gpt-oss-120b: 36 x (4 + 4 + 7) + 6 = 546, a published count.
    assert kernels(load_model("qwen3-8b")) == 402
    assert kernels(load_model("gpt-oss-120b")) == 546
    assert kernels(load_model("deepseek-v3")) == 61 * (4 + 9) + 3 * 3 + 58 * (7 + 3) + 6


def test_fixed_time_of_kernels_as_measured():
    # 546 kernels of gpt-oss at 4.98 us: 2.72 ms.
    step = StepModel(deployed("gpt-oss-120b", "mi355x"))
    assert part_of(step, "kernels", (0, 0, 0, 1, 1)) == pytest.approx(2.72e6, rel=1e-3)


def test_graph_modes():
    mixed = (1, 500, 0, 4, 4000)
    full, piecewise, none = (StepModel(deployed(DENSE, graph=g)) for g in ("full", "piecewise", "none"))
    assert part_of(none, "host", mixed) - part_of(full, "host", mixed) == 37_000
    gpu = float(full.totals(queries(mixed))[0]) - 3000
    assert float(piecewise.totals(queries(mixed))[0]) == pytest.approx(gpu * 1.15 + 8000)
    assert piecewise.decode_ns(4, 1000) == full.decode_ns(4, 1000) + 5000
    # 28 kernels at 20 us are longer than the decode of 155,528 ns.
    slow = StepModel(deployed(DENSE, graph="none", launch_us=20))
    assert slow.decode_ns(1, 1000) == 28 * 20_000 + 40_000
    assert StepModel(deployed(DENSE, graph="full", launch_us=20)).decode_ns(1, 1000) == 155_528


# How it must behave.


def spread(model: ModelShape, tp: int, dp: int, ep: int, **more) -> Deployment:
    return deployed(model, "h100-sxm", tp=tp, attention_dp=dp, ep=ep if model.experts else 1, **more)


@pytest.mark.parametrize("name", model_names())
def test_more_of_anything_never_takes_less_time(name):
    model, rng, n = load_model(name), np.random.default_rng(1), 400
    prompts, decodes = rng.integers(0, 6, n), rng.integers(0, 200, n)
    new, held = prompts * rng.integers(1, 3000, n), prompts * rng.integers(0, 30_000, n)
    kv = decodes * rng.integers(1, 60_000, n)
    some, does = prompts > 0, decodes > 0
    each = np.where(does, kv // np.maximum(decodes, 1), 500)
    for tp, dp, ep, asked in ((1, 1, 1, "rank"), (8, 1, 8, "rank"), (8, 8, 8, "rank"), (8, 8, 8, "engine")):
        step = StepModel(spread(model, tp, dp, ep, graph="piecewise", sparse_cost_scale=2.0), asked)
        base = step.totals(PassQueries(prompts, new, held, decodes, kv))
        for more in (
            (prompts, new + 7 * some, held, decodes, kv),
            (prompts, new, held + 999 * some, decodes, kv),
            (prompts, new, held, decodes, kv + 1234 * does),
            (prompts, new, held, decodes + 1, kv),
            (prompts, new, held, decodes + 1, kv + each),
        ):
            assert (step.totals(PassQueries(*more)) >= base * (1 - 1e-12)).all()


@pytest.mark.parametrize("name", ["qwen3-8b", "llama-3.1-70b", "qwen3-32b"])
@pytest.mark.parametrize("part", ["h100-sxm", "b200-sxm", "mi355x"])
def test_a_pass_never_exceeds_the_rates_of_the_part(name, part):
    model, gpu = load_model(name), load_part(part)
    a = model.attention
    per_layer = model.hidden * (a.heads * a.head_dim * 2 + 2 * a.kv_heads * a.head_dim + 3 * model.dense_width)
    weights = 2.0 * (model.layers * per_layer + model.hidden * model.vocab)
    step = StepModel(deployed(model, part))
    for batch, context in ((1, 100), (16, 4000), (256, 30_000)):
        kv = batch * context * model.layers * 2 * a.kv_heads * a.head_dim * 2.0
        assert step.decode_ns(batch, context) > (weights + kv) / (gpu.hbm_tb_s * 1e3)
    for tokens in (1, 512, 16_384):
        pairs = model.layers * tokens * tokens / 2 * 4.0 * a.heads * a.head_dim
        operations = 2.0 * model.layers * per_layer * tokens + pairs
        assert step.prefill_ns(1, tokens) > operations / (gpu.bf16_tflops * 1e3)
        assert step.prefill_ns(1, tokens) > weights / (gpu.hbm_tb_s * 1e3)


def test_tensor_parallelism_halves_what_is_sharded_and_nothing_fixed():
    one, two = (StepModel(deployed("llama-3.1-70b", "h100-sxm", tp=tp)).parts(decode(4, 8000)) for tp in (1, 2))
    for name in ("projections", "mlp", "decode_attention", "head"):
        assert two[name] / one[name] == pytest.approx(0.5, rel=0.01)
    for name in ("kernels", "host", "norms", "sampling"):
        assert two[name] == one[name]
    assert one["collectives"] == 0 < two["collectives"]


def test_a_latent_is_read_whole_by_every_gpu():
    tp1, tp8 = (
        StepModel(deployed("deepseek-v3", replace(load_part("h200-sxm"), bf16_tflops=1e9), tp=tp)) for tp in (1, 8)
    )
    read = [float(step.parts(decode(8, 50_000))["decode_attention"][0]) for step in (tp1, tp8)]
    assert read[1] / read[0] == pytest.approx(1.0, rel=0.01)


def test_the_kv_format_changes_what_is_read():
    bf16, fp8 = (
        StepModel(deployed("qwen3-8b", "h100-sxm", kv_dtype=d)).parts(decode(16, 20_000)) for d in ("bf16", "fp8")
    )
    assert fp8["decode_attention"] / bf16["decode_attention"] == pytest.approx(0.5, rel=1e-3)
    assert fp8["mlp"] == bf16["mlp"]


def test_decoding_a_long_context_is_reading_it():
    # 36 layers x 8 heads x 2 x 128 values x 2 bytes = 147,456 bytes per token.
    part = load_part("h100-sxm")
    step = StepModel(deployed("qwen3-8b", part))
    more = step.decode_ns(16, 100_000) - step.decode_ns(16, 50_000)
    assert more == pytest.approx(16 * 50_000 * 147_456 / (3350 * part.bandwidth_share))
    assert step.decode_ns(16, 100_000) > 0.8 * 16 * 100_000 * 147_456 / (3350 * part.bandwidth_share)


def test_shared_contexts_divide_what_is_read():
    part = replace(load_part("h200-sxm"), bf16_tflops=1e9)  # each GPU computes four times the heads over a quarter
    one, four = (StepModel(deployed("deepseek-v3", part, tp=8, dcp=n)).parts(decode(4, 200_000)) for n in (1, 4))
    assert four["decode_attention"] / one["decode_attention"] == pytest.approx(0.25, rel=0.01)
    assert four["collectives"] > one["collectives"]


def test_attention_is_split_among_ranks_once():
    """64 requests on 8 ranks: each rank attends as a whole model does to 8, and projects 8 tokens; experts see 64."""
    model = load_model("deepseek-v3")
    alone = StepModel(deployed(model, "h200-sxm")).parts(decode(8, 3000))
    whole = StepModel(deployed(model, "h200-sxm", tp=8, ep=8)).parts(decode(64, 3000))
    rank = StepModel(deployed(model, "h200-sxm", tp=8, ep=8, attention_dp=8)).parts(decode(8, 3000))
    engine = StepModel(deployed(model, "h200-sxm", tp=8, ep=8, attention_dp=8), "engine")
    combined = engine.parts(queries((0, 0, 0, 64, 8 * 3000)))  # the KV of one rank
    for name in ("decode_attention", "projections", "norms"):
        assert rank[name] == combined[name] == alone[name]
    for name in ("experts", "head"):
        assert rank[name] == combined[name] == whole[name]
    assert engine.decode_ns(64, 3000) == float(engine.totals(queries((0, 0, 0, 64, 24_000)))[0])
    assert engine.decode_ns(57, 3000) < engine.decode_ns(64, 3000)  # still 8 on the largest rank, fewer for the experts


def test_one_prompt_is_computed_by_one_rank():
    model = load_model("deepseek-v3")
    step = StepModel(deployed(model, "h200-sxm", tp=8, ep=8, attention_dp=8), "engine")
    alone = StepModel(deployed(model, "h200-sxm")).parts(queries((1, 4000, 0, 0, 0)))
    assert step.parts(queries((1, 4000, 0, 0, 0)))["projections"] == alone["projections"]
    assert step.parts(queries((8, 32_000, 0, 0, 0)))["projections"] == alone["projections"]


def test_a_mixed_pass_reads_the_weights_once():
    step = StepModel(deployed("qwen3-8b", "h100-sxm"))
    prefill, both, alone = step.totals(queries((1, 256, 0, 0, 0), (1, 256, 0, 16, 16_000), (0, 0, 0, 16, 16_000)))
    weights = 2 * 36 * 4096 * (32 * 128 * 2 + 2 * 8 * 128 + 3 * 12_288) / (3350 * load_part("h100-sxm").bandwidth_share)
    assert max(prefill, alone) < both < prefill + alone - 0.8 * weights


def test_verifying_computes_more_tokens_over_one_reading():
    step = StepModel(deployed("qwen3-8b", "h100-sxm"))
    one, four = (step.parts(decode(8, 30_000), width) for width in (1, 4))
    assert four["decode_attention"] / one["decode_attention"] == pytest.approx(1.0, rel=0.001)
    assert step.decode_ns(8, 30_000, 1) < step.decode_ns(8, 30_000, 4) < 4 * step.decode_ns(8, 30_000, 1)
    # As many tokens as 32 requests compute, but the experts' and the MLP's share is the same.
    assert four["mlp"] == step.parts(decode(32, 7500))["mlp"]
    wide = StepModel(deployed("qwen3-8b", "h100-sxm", verify_width=4))
    assert float(wide.totals(decode(8, 30_000))[0]) == step.decode_ns(8, 30_000, 4)


def test_uneven_experts():
    even, odd = (
        StepModel(deployed("deepseek-v3", "h200-sxm", tp=8, ep=8, ep_imbalance=r)).parts(queries((1, 30_000, 0, 0, 0)))
        for r in (1.0, 1.5)
    )
    assert 1.2 < odd["experts"] / even["experts"] < 1.5
    few = StepModel(deployed("deepseek-v3", "h200-sxm", tp=8, router_balance=0.8)).parts(decode(64, 1000))
    all_ = StepModel(deployed("deepseek-v3", "h200-sxm", tp=8)).parts(decode(64, 1000))
    assert 0.75 < few["experts"] / all_["experts"] < 0.95


def test_families_of_kernels():
    triton, aiter = (
        StepModel(deployed("qwen3-8b", "mi355x", attention_family=f)).parts(decode(8, 9000)) for f in ("", "aiter")
    )
    assert aiter["decode_attention"] / triton["decode_attention"] == pytest.approx(0.85)


@pytest.mark.parametrize(
    ("model", "more", "named"),
    [
        (DENSE, {"tp": 3}, "4 heads, which 3 GPUs"),
        (DENSE, {"tp": 4, "attention_dp": 3}, "attention_dp=3"),
        (MOE, {"tp": 4, "ep": 3}, "ep=3"),
        (DENSE, {"tp": 4, "dcp": 4}, "each of the 2 KV heads a GPU"),
    ],
)
def test_deployments_that_cannot_be(model, more, named):
    with pytest.raises(GapscopeError, match=named):
        StepModel(deployed(model, **more))


def test_queries_of_nothing_cost_what_is_fixed_and_the_weights():
    step = StepModel(deployed(MOE))
    parts = {name: float(value[0]) for name, value in step.parts(queries((0, 0, 0, 0, 0))).items()}
    assert parts["prefill_attention"] == parts["decode_attention"] == parts["norms"] == 0
    assert parts["experts"] == 2 * 1000 * 8 * 2 / 500  # the router's weights alone


def test_shapes_by_hand_are_as_good_as_presets():
    own = Attention(32, 8, 128, 128)
    made = ModelShape("x", 4096, 36, 151_936, own, 12_288)
    assert StepModel(deployed(made, "h100-sxm")).decode_ns(8, 100) == StepModel(
        deployed("qwen3-8b", "h100-sxm")
    ).decode_ns(8, 100)
    assert Rates(PART).bf16 == 50_000
    assert replace(MOE, experts=Experts(8, 2, 500, dense_layers=1), dense_width=10).expert_layers == 1
