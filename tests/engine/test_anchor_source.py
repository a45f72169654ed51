"""Passes priced from anchors: curves over batch and context, widths, prompts, speculation, and the seam."""

from __future__ import annotations

import math

import numpy as np
import pytest
from anchor_cases import KNOWN, artefact, target

from engine import knobs as knob_table
from engine.bundle.schema import RESOLUTIONS
from engine.deployment import Deployment, load_model, load_part
from engine.errors import GapscopeError
from engine.timing import PassQueries, build_timing
from engine.timing.analytic import StepModel
from engine.timing.anchors import read_anchor
from engine.timing.anchors.model import model_of
from engine.timing.contract import Refused

CONTEXT = 8704  # of the sweep: 8192 and half of 1024
LLAMA = {
    "model": "meta-llama/Llama-3.1-70B",
    "gpu_arch": "h100-sxm",
    "weight_dtype": "bf16",
    "kv_cache_dtype": "bf16",
    "moe_expert_dtype": ...,
    "attention_backend": ...,
    "engine_version": ...,
}
"""A dense model whose passes can be priced by the formula."""
ON_LLAMA = {"part": "h100-sxm", "model_preset": "llama-3.1-70b"}


def source(document=None, asked=None, /, **knobs):
    values = knob_table.resolve({"timing": "anchor", **knobs})
    anchor = read_anchor(document or artefact(), "a")
    return build_timing(values, model_of(anchor, asked or target()))


def llama(sweep=None, grid=None, /, like=None, meta=None, **knobs):
    named = artefact(sweep, grid, **{**LLAMA, **(meta or {})})
    return source(named, target(), **{**ON_LLAMA, "tp": 4, **knobs})


def decode_ms(timing, batch, context):
    return timing.pass_ns(0, 0, 0, batch, batch * context) / 1e6


def resolution(timing, *query):
    times = timing.explain(PassQueries(*(np.array([axis], np.int64) for axis in query)))
    return RESOLUTIONS[times.resolution[0]]


# -- decode over the batch -------------------------------------------------------------------------------------


def test_a_measured_batch_is_hit_exactly():
    timing = source()
    assert [decode_ms(timing, batch, CONTEXT) for batch in (1, 16, 64)] == [8.0, 12.0, 20.0]
    assert resolution(timing, 0, 0, 0, 16, 16 * CONTEXT) == "exact"


def test_between_batches_logarithms_are_straight():
    # half way in logarithms from 16 to 64 is 32: the root of 12 x 20
    assert decode_ms(source(), 32, CONTEXT) == pytest.approx(math.sqrt(240), abs=1e-5)
    assert resolution(source(), 0, 0, 0, 32, 32 * CONTEXT) == "interpolated"


def test_beyond_the_sweep_the_nearest_batch_or_the_last_slope():
    assert decode_ms(source(), 256, CONTEXT) == 20.0
    assert resolution(source(), 0, 0, 0, 256, 256 * CONTEXT) == "clamped"
    onward = source(on_refused="extrapolate")
    # from 16 to 64 it grows by 20 / 12, and 256 is as far again
    assert decode_ms(onward, 256, CONTEXT) == pytest.approx(20 * 20 / 12, abs=1e-5)
    assert resolution(onward, 0, 0, 0, 256, 256 * CONTEXT) == "extrapolated"
    with pytest.raises(Refused, match="decode batches 1 to 64"):
        decode_ms(source(on_refused="abort"), 256, CONTEXT)


def test_a_staircase_pads_up_and_stays_at_its_top():
    timing = source(artefact(decode_pad_to_capture=True), on_refused="extrapolate")
    assert [decode_ms(timing, b, CONTEXT) for b in (1, 2, 16, 17, 64, 65)] == [8.0, 12.0, 12.0, 20.0, 20.0, 20.0]
    assert [resolution(timing, 0, 0, 0, b, b * CONTEXT) for b in (2, 16, 65)] == ["interpolated", "exact", "clamped"]


def test_one_batch_has_its_level_and_the_shape_of_the_whole_step():
    timing = llama({16: 30.0})
    step = StepModel(Deployment(load_model("llama-3.1-70b"), load_part("h100-sxm"), tp=4))
    shape = step.decode_ns(64, CONTEXT) / step.decode_ns(16, CONTEXT)
    assert decode_ms(timing, 16, CONTEXT) == 30.0
    assert decode_ms(timing, 64, CONTEXT) == pytest.approx(30 * shape, rel=1e-6)
    assert resolution(timing, 0, 0, 0, 64, 64 * CONTEXT) == "analytic"
    # without a deployment there is no shape: the one batch is all that is known
    assert decode_ms(source(artefact({16: 30.0})), 64, CONTEXT) == 30.0


# -- decode over the context -----------------------------------------------------------------------------------

GRID = {(16, 8704 + 4000): 13.0, (16, 8704 + 8000): 14.5, (16, 8704 - 4000): 12.4, (64, 8704 + 8000): 28.0}
# slopes of batch 16: 1 / 4000, 2.5 / 8000, and a negative one that is left out; their median is 0.00028125.
SLOPE_16, SLOPE_64 = 0.00028125, 0.001


def test_the_slope_over_the_context_is_signed_and_its_own_for_each_batch():
    timing = source(artefact(grid=GRID))
    assert decode_ms(timing, 16, CONTEXT + 4000) == pytest.approx(12 + 4000 * SLOPE_16)
    assert decode_ms(timing, 16, CONTEXT - 4000) == pytest.approx(12 - 4000 * SLOPE_16)
    assert decode_ms(timing, 64, CONTEXT + 4000) == pytest.approx(20 + 4000 * SLOPE_64)
    slope = math.sqrt(SLOPE_16 * SLOPE_64)  # straight in logarithms at 32
    assert decode_ms(timing, 32, CONTEXT + 4000) == pytest.approx(math.sqrt(240) + 4000 * slope, abs=1e-5)
    assert decode_ms(timing, 1, CONTEXT + 4000) == pytest.approx(8 + 4000 * SLOPE_16)  # held flat outside
    assert resolution(timing, 0, 0, 0, 16, 16 * (CONTEXT + 4000)) == "interpolated"


def test_beyond_the_grid_the_nearest_context_or_the_slope():
    far = CONTEXT + 16_000
    assert decode_ms(source(artefact(grid=GRID)), 16, far) == pytest.approx(12 + 8000 * SLOPE_16)
    assert resolution(source(artefact(grid=GRID)), 0, 0, 0, 16, 16 * far) == "clamped"
    onward = source(artefact(grid=GRID), on_refused="extrapolate")
    assert decode_ms(onward, 16, far) == pytest.approx(12 + 16_000 * SLOPE_16)
    assert resolution(onward, 0, 0, 0, 16, 16 * far) == "extrapolated"


def test_a_decode_floor_holds():
    document = artefact(grid={(64, 8704 + 1000): 30.0}, decode_floor_ms=7.5)
    timing = source(document, on_refused="extrapolate")
    assert decode_ms(timing, 64, 1) == 7.5  # 20 - 8703 x 0.01 is below


def test_without_a_grid_a_dense_model_has_the_difference_of_the_formula():
    step = StepModel(Deployment(load_model("llama-3.1-70b"), load_part("h100-sxm"), tp=4))
    more = (step.decode_ns(16, 32_768) - step.decode_ns(16, CONTEXT)) / 1e6
    assert decode_ms(llama(), 16, 32_768) == pytest.approx(12 + more, abs=2e-6)
    assert resolution(llama(), 0, 0, 0, 16, 16 * 32_768) == "analytic"
    assert resolution(llama(), 0, 0, 0, 16, 16 * (CONTEXT + 800)) == "interpolated"  # within a tenth
    assert decode_ms(source(), 16, 32_768) == 12.0  # nobody knows more
    assert resolution(source(), 0, 0, 0, 16, 16 * 32_768) == "clamped"


def test_a_model_that_selects_is_read_as_measured_at_any_context():
    timing = source(
        artefact(kv_cache_dtype="bf16", moe_expert_dtype="mxfp4"),
        part="mi355x",
        model_preset="glm-5.2",
        weight_dtype="mxfp4",
        tp=4,
    )
    assert decode_ms(timing, 16, 65_536) == 12.0
    assert resolution(timing, 0, 0, 0, 16, 16 * 65_536) == "clamped"


def test_the_width_of_kv_changes_the_answer():
    wider = {"anchor_allow": "kv_dtype", "on_refused": "extrapolate"}
    gridded = artefact(grid=GRID, kv_cache_dtype="fp8")
    timing = source(gridded, target(kv_dtype="bf16"), **wider)
    # twice the bytes per token: twice the slope, from the context that the level belongs to
    at = CONTEXT + 4000
    assert decode_ms(timing, 16, at) == pytest.approx(12 + SLOPE_16 * (2 * at - CONTEXT))
    with pytest.raises(GapscopeError, match="KV dtype"):
        source(gridded, target(kv_dtype="bf16"))
    formula = llama(meta={"kv_cache_dtype": "fp8"}, **wider)
    both = [
        StepModel(Deployment(load_model("llama-3.1-70b"), load_part("h100-sxm"), tp=4, kv_dtype=kv))
        for kv in ("bf16", "fp8")
    ]
    more = (both[0].decode_ns(16, CONTEXT) - both[1].decode_ns(16, CONTEXT)) / 1e6
    assert more > 0
    assert decode_ms(formula, 16, CONTEXT) == pytest.approx(12 + more, abs=2e-6)
    with pytest.raises(GapscopeError, match="KV of this one needs what the part can do"):
        source(artefact(kv_cache_dtype="fp8"), target(kv_dtype="bf16"), **wider)


# -- widths ----------------------------------------------------------------------------------------------------


def test_another_tp_holds_the_floor_and_shares_the_rest():
    timing = source(artefact(grid=GRID), target(tp=8))
    # the floor is the least of the sweep, 8 ms; what is above is halved
    assert [decode_ms(timing, b, CONTEXT) for b in (1, 16, 64)] == [8.0, 10.0, 14.0]
    assert decode_ms(timing, 16, CONTEXT + 4000) == pytest.approx(10 + 4000 * SLOPE_16 / 2)
    stated = source(artefact(decode_floor_ms=6.0), target(tp=8))
    assert [decode_ms(stated, b, CONTEXT) for b in (1, 16, 64)] == [7.0, 9.0, 13.0]
    assert resolution(stated, 0, 0, 0, 16, 16 * CONTEXT) == "analytic"
    assert any("tp 4 to 8" in done for done in stated.describe()["transport"])


def without_collectives(step, batch):
    none = np.zeros(1, np.int64)
    parts = step.parts(PassQueries(none, none, none, np.array([batch]), np.array([batch * CONTEXT])))
    return sum(time[0] for name, time in parts.items() if name != "collectives") / 1e6


def test_other_widths_are_the_difference_of_whole_steps_without_what_gpus_say():
    model, part = load_model("qwen3-235b-a22b"), load_part("h100-sxm")
    meta = {**LLAMA, "model": "Qwen/Qwen3-235B-A22B"}
    timing = source(
        artefact(**meta), target(), part="h100-sxm", model_preset="qwen3-235b-a22b", tp=4, ep=4, anchor_allow=""
    )
    here, there = (StepModel(Deployment(model, part, tp=4, ep=ep)) for ep in (1, 4))
    ms = 12 + without_collectives(there, 16) - without_collectives(here, 16)
    assert decode_ms(timing, 16, CONTEXT) == pytest.approx(max(0.6, ms), abs=2e-6)


def test_stages_add_what_they_take_to_hand_over():
    timing = llama(pp=2)
    assert decode_ms(timing, 16, CONTEXT) > 12.0
    # a send of 16 x 8192 x 2 bytes at 450 GB/s and 12.8 us
    part = load_part("h100-sxm")
    assert decode_ms(timing, 16, CONTEXT) == pytest.approx(12 + 0.0128 + 16 * 8192 * 2 / part.link_gb_s / 1e6, abs=1e-5)


def test_another_attention_dp_layout_is_the_difference_of_the_formula():
    meta = {**LLAMA, "model": "Qwen/Qwen3-235B-A22B", "attention_data_parallel_size": 1}
    named = {"part": "h100-sxm", "model_preset": "qwen3-235b-a22b", "tp": 4, "attention_dp": 4}
    timing = source(artefact(**meta), target(), **named)
    model, part = load_model("qwen3-235b-a22b"), load_part("h100-sxm")
    here, there = (StepModel(Deployment(model, part, tp=4, attention_dp=dp), "engine") for dp in (1, 4))
    none = np.zeros(1, np.int64)

    def whole(step, kv):
        parts = step.parts(PassQueries(none, none, none, np.array([16]), np.array([kv])))
        return sum(time[0] for name, time in parts.items() if name != "collectives") / 1e6

    # 16 requests of the engine are four of a rank, and the largest rank's KV is that of four
    ms = max(0.6, 12 + whole(there, 4 * CONTEXT) - whole(here, 16 * CONTEXT))
    assert timing.pass_ns(0, 0, 0, 4, 4 * CONTEXT) / 1e6 == pytest.approx(ms, abs=2e-6)
    # each rank has a chunk: the step never takes less than that of one chunk on all GPUs
    more = (there.prefill_ns(4, 4 * 8192) - here.prefill_ns(1, 8192)) / 1e6
    factor = max(1.0, (839.2 + more) / 839.2)
    assert timing.pass_ns(1, 8192, 0, 0, 0) / 1e6 == pytest.approx(20 + 819.2 * factor, rel=1e-6)


def test_what_needs_the_formula_is_refused_without_one():
    with pytest.raises(GapscopeError, match="name part and model_preset"):
        source(artefact(), target(pp=2))
    with pytest.raises(GapscopeError, match="name part and model_preset"):
        source(artefact({16: 12.0}), target(tp=8))


def test_prompts_on_another_tp():
    # 20 ms and 0.1 ms per token; tokens are shared evenly, and the fixed part is held
    timing = source(artefact(), target(tp=8))
    assert timing.pass_ns(1, 4096, 0, 0, 0) / 1e6 == pytest.approx(20 + 204.8)
    both = [
        StepModel(Deployment(load_model("llama-3.1-70b"), load_part("h100-sxm"), tp=tp)).prefill_ns(1, 8192)
        for tp in (4, 8)
    ]
    by_formula = llama(tp=8)
    assert by_formula.pass_ns(1, 4096, 0, 0, 0) / 1e6 == pytest.approx(20 + 409.6 * both[1] / both[0], rel=1e-6)
    curve = {"points": [{"input_len": n, "mean_ttft_ms": 20 + n / 10} for n in (1024, 2048, 4096, 8192)]}
    fitted = llama(meta={"prefill_anchor": curve}, tp=8)
    assert fitted.pass_ns(1, 4096, 0, 0, 0) / 1e6 == pytest.approx(429.6 * both[1] / both[0], rel=1e-6)


# -- prompts ---------------------------------------------------------------------------------------------------


def bent(*lengths):
    """20 ms, 0.05 ms per token, and 1e-5 ms per token and token of its own prompt."""
    return {"points": [{"input_len": n, "mean_ttft_ms": 20 + 0.05 * n + 1e-5 * n * n} for n in lengths]}


def test_a_bend_is_read_no_further_than_it_was_measured():
    timing = source(artefact(prefill_anchor=bent(512, 1024, 2048, 4096)), target(prompt_tokens=16_384.0))
    assert timing.pass_ns(1, 4096, 0, 0, 0) / 1e6 == pytest.approx(20 + 204.8 + 167.77216)
    rate = 0.05 + 1e-5 * 4096
    assert timing.pass_ns(1, 16_384, 0, 0, 0) / 1e6 == pytest.approx(20 + rate * 16_384)
    assert resolution(timing, 1, 4096, 0, 0, 0) == "interpolated"
    assert resolution(timing, 1, 16_384, 0, 0, 0) == "clamped"


def test_a_chunk_is_priced_at_what_it_had_cached():
    timing = source(artefact(prefill_anchor=bent(512, 1024, 2048, 4096)))
    whole, first = (timing.pass_ns(1, n, 0, 0, 0) for n in (2048, 1024))
    second = timing.pass_ns(1, 1024, 1024, 0, 0)
    # two halves do what the whole does, and the fixed part twice
    assert (first + second - whole) / 1e6 == pytest.approx(20)


def test_the_fixed_part_is_charged_once_per_step():
    timing = source(artefact(prefill_anchor=bent(512, 1024, 2048, 4096)))
    one, two = timing.pass_ns(1, 1024, 0, 0, 0) / 1e6, timing.pass_ns(2, 2048, 0, 0, 0) / 1e6
    assert two - 20 == pytest.approx(2 * (one - 20))


def test_packed_prompts_have_their_rate_and_the_bend_and_fixed_part_of_single_ones():
    pack = {
        "seq_len": 1024,
        "budget_tokens": 8192,
        "repeats": 3,
        "ms_per_token": 0.055,
        "points": [{"step_tokens": n * 1024, "seqs": n, "last_ttft_ms": 20 + 56.32 * n} for n in (1, 2, 4, 8)],
    }
    timing = source(
        artefact(prefill_anchor={**bent(512, 1024, 2048, 4096), "packed": pack}), target(prompt_tokens=1024.0)
    )
    assert timing.pass_ns(4, 4096, 0, 0, 0) / 1e6 == pytest.approx(20 + 0.055 * 4096)
    # prompts of 512: the rate is less by the bend over the 512 tokens that they are shorter
    assert timing.pass_ns(4, 2048, 0, 0, 0) / 1e6 == pytest.approx(20 + (0.055 - 512e-5) * 2048)
    assert resolution(timing, 4, 4096, 0, 0, 0) == "interpolated"
    assert resolution(source(), 4, 4096, 0, 0, 0) == "clamped"  # nobody measured several


def test_a_rate_that_gets_negative_is_the_slowest_measured():
    points = [{"input_len": n, "mean_ttft_ms": ms} for n, ms in ((1000, 100), (2000, 190), (3000, 270))]
    fit = {"fixed_ms": 0, "ms_per_token": 0.1, "ms_per_token_sq": -1e-4}
    timing = source(artefact(prefill_anchor={"points": points, "curve_fit": fit}))
    assert timing.pass_ns(1, 500, 0, 0, 0) / 1e6 == pytest.approx(500 * 0.05)
    assert timing.pass_ns(1, 2000, 0, 0, 0) / 1e6 == pytest.approx(2000 * 0.09)


def test_a_refused_prefill_is_priced_by_the_formula_and_decode_stays_calibrated():
    short = {"prefill_anchor": {"points": [{"input_len": n, "mean_ttft_ms": 20 + n / 10} for n in (512, 1024)]}}
    timing = source(artefact(**{**LLAMA, **short}), target(prompt_tokens=8192.0), **ON_LLAMA, tp=4)
    step = StepModel(Deployment(load_model("llama-3.1-70b"), load_part("h100-sxm"), tp=4))
    assert decode_ms(timing, 16, CONTEXT) == 12.0
    assert timing.pass_ns(1, 2048, 6144, 0, 0) == pytest.approx(step.prefill_ns(1, 2048, 6144), abs=1)
    told = timing.describe()
    assert (told["decode_source"], told["prefill_source"]) == ("anchor", "analytic")
    assert told["calibrated"] == {"decode": True, "prefill": False}
    queries = PassQueries(*(np.array(axis) for axis in ((1, 0, 1), (2048, 0, 2048), (0, 0, 0), (0, 4, 4), (0, 9, 9))))
    times = timing.explain(queries)
    assert [times.sources[i] for i in times.source] == ["analytic", "anchor", "anchor decode, analytic prefill"]
    with pytest.raises(GapscopeError, match=r"prefill of anchor a is refused: Prompts of up to 1,024.*take an anchor"):
        source(artefact(**short), target(prompt_tokens=8192.0))


def test_a_refused_prefill_names_presets_of_its_own_deployment_alone():
    own = {"model": "llama3170b", "weight_dtype": "bf16", "kv_dtype": "bf16", "expert_dtype": None, "part": "h100-sxm"}
    with pytest.raises(GapscopeError, match=r"name part=h100-sxm and model_preset=llama-3.1-70b, by whose"):
        source(artefact(**{**LLAMA, "prefix_caching": True}), target(**own))
    taken = source(artefact(**{**LLAMA, "prefix_caching": True}), target(**own), **ON_LLAMA, tp=4)
    assert taken.describe()["calibrated"] == {"decode": True, "prefill": False}
    with pytest.raises(
        GapscopeError, match=r"take an anchor with other prompts.*part amd epyc and model toyllama, and"
    ):
        source(
            artefact(model="toyllama", gpu_arch="AMD EPYC", prefix_caching=True),
            target(model="toyllama", part="amd epyc"),
        )


def test_cache_hits_are_looked_up_by_the_length_of_the_prompt():
    timing = source(artefact(prefix_caching=True), target(hit_rate=1.0))
    # 20 ms and 0.1 per token of prompt at 1,024 and 8,192, straight between
    assert timing.pass_ns(1, 16, 4080, 0, 0) / 1e6 == pytest.approx(20 + 409.6)


def test_mixed_passes_are_sums_or_margins():
    summed, margin = source(), source(mixed_composition="marginal")
    query = (1, 1000, 0, 16, 16 * CONTEXT)
    assert summed.pass_ns(*query) / 1e6 == pytest.approx(120 + 12)
    assert margin.pass_ns(*query) / 1e6 == pytest.approx(120 + 12 - 8)
    assert margin.pass_ns(0, 0, 0, 16, 16 * CONTEXT) / 1e6 == 12.0


# -- speculation -----------------------------------------------------------------------------------------------


def test_an_anchor_of_drafts_has_times_per_output_token():
    spec = {"spec_method": "mtp", "spec_tokens": 3, "spec_acceptance": "0.8"}
    document = artefact(speculative_method="mtp", speculative_num_tokens=3)
    # 1 + 0.8 + 0.64 + 0.512 tokens per verification
    assert decode_ms(source(document, **spec), 16, CONTEXT) == pytest.approx(12 * 2.952)
    own = artefact(speculative_method="mtp", speculative_num_tokens=3, speculative_acceptance_length=2.5)
    assert decode_ms(source(own, **spec, spec_draft_cost=0.5), 16, CONTEXT) == pytest.approx(30)
    passes = artefact(speculative_method="mtp", speculative_num_tokens=3, decode_observable="pass")
    assert decode_ms(source(passes, **spec), 16, CONTEXT) == pytest.approx(12)


def test_a_plain_anchor_is_refused_or_scaled_where_that_is_allowed():
    spec = {"spec_method": "mtp", "spec_tokens": 3, "spec_acceptance": "0.8"}
    with pytest.raises(GapscopeError, match="Another speculation: off in the anchor, spec:3 in the target"):
        source(**spec)
    allowed = {**spec, "anchor_allow": "speculation,speculation_method"}
    step = StepModel(Deployment(load_model("llama-3.1-70b"), load_part("h100-sxm"), tp=4))
    ratio = step.decode_ns(16, CONTEXT, 4) / step.decode_ns(16, CONTEXT, 1)
    assert 1 < ratio < 4
    timing = llama(**allowed, spec_draft_cost=0.1)
    assert decode_ms(timing, 16, CONTEXT) == pytest.approx(12 * (ratio + 0.3), rel=1e-6)
    assert decode_ms(source(**allowed), 16, CONTEXT) == pytest.approx(48)  # nothing is known but the width


# -- ranks -----------------------------------------------------------------------------------------------------


def test_a_rank_is_asked_for_its_share_and_the_anchor_holds_the_batch_of_all():
    document = artefact(attention_data_parallel_size=4)
    ranks = {"attention_dp": 4, "tp": 4}
    own, both = source(document, **ranks), source(document, **ranks, dp_price="combined")
    assert own.pass_ns(0, 0, 0, 4, 4 * CONTEXT) == 12_000_000  # 16 of all four
    assert both.pass_ns(0, 0, 0, 16, 4 * CONTEXT) == 12_000_000  # the largest rank has four of them
    assert both.pass_ns(4, 4096, 0, 0, 0) == own.pass_ns(1, 1024, 0, 0, 0)


# -- the seam --------------------------------------------------------------------------------------------------

CASES = {
    "grid": lambda: source(artefact(grid=GRID)),
    "onward": lambda: source(artefact(grid=GRID), on_refused="extrapolate", mixed_composition="marginal"),
    "staircase": lambda: source(artefact(decode_pad_to_capture=True, decode_floor_ms=5.0), pass_scale=0.7),
    "wide": lambda: llama(tp=8),
    "single": lambda: llama({16: 30.0}),
    "drafts": lambda: llama(
        spec_method="mtp", spec_tokens=3, spec_acceptance="0.8", anchor_allow="speculation", spec_draft_cost=0.1
    ),
    "piecewise": lambda: llama(graph_mode="piecewise"),
    "formula": lambda: llama(meta={"prefill_anchor": None}),
    "ranks": lambda: source(artefact(attention_data_parallel_size=4), attention_dp=4, tp=4, dp_price="combined"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_query_and_many_are_answered_alike(case):
    rng = np.random.default_rng(7)
    n = 3000
    prompts = rng.integers(0, 4, n)
    decodes = rng.integers(0, 200, n)
    prompts[(prompts == 0) & (decodes == 0)] = 1
    queries = PassQueries(
        prompts,
        prompts * rng.integers(1, 9000, n),
        prompts * rng.integers(0, 20_000, n),
        decodes,
        decodes * rng.integers(1, 30_000, n),
    )
    timing = CASES[case]()
    told = timing.explain(queries).total_ns.tolist()
    columns = [getattr(queries, axis).tolist() for axis in PassQueries.__slots__]
    assert [timing.pass_ns(*query) for query in zip(*columns, strict=True)] == told
    assert CASES[case]().explain(queries).total_ns.tolist() == told
    contexts = [9 * CONTEXT + 9 * i for i in range(50)]
    starts, durations, _ = timing.decode_run(9, contexts, 0, 1 << 60)
    assert durations == [timing.pass_ns(0, 0, 0, 9, context) for context in contexts]
    assert len(starts) == 50


def test_a_chain_answers_what_the_anchor_does_not():
    timing = llama(on_refused="analytic")
    step = StepModel(Deployment(load_model("llama-3.1-70b"), load_part("h100-sxm"), tp=4))
    assert decode_ms(timing, 16, CONTEXT) == 12.0
    assert timing.pass_ns(0, 0, 0, 256, 256 * CONTEXT) == pytest.approx(step.decode_ns(256, CONTEXT), abs=1)
    times = timing.explain(
        PassQueries(*(np.array(axis) for axis in ((0, 0), (0, 0), (0, 0), (16, 256), (16 * CONTEXT, 256 * CONTEXT))))
    )
    assert [RESOLUTIONS[r] for r in times.resolution] == ["exact", "analytic"]
    assert timing.describe()["fallback"]["kind"] == "analytic"


# -- what is said, and what is refused -------------------------------------------------------------------------


def test_the_description_says_what_was_ingested():
    told = source(artefact(grid=GRID), lanes=160).describe()
    verdict = told["acceptance"]
    assert (told["kind"], told["anchor"], verdict["distance"], verdict["confidence"]) == ("anchor", "a", 0, "interp")
    assert told["calibrated"] == {"decode": True, "prefill": True}
    assert told["data_regime"]["part"] == "gfx950"
    assert {row["axis"] for row in verdict["rows"]} == set(KNOWN)
    assert [w["code"] for w in verdict["warnings"]] == ["sweep_narrow", "straight_line"]
    assert told["model"]["digest"] == told["model_digest"]


DRAFTS = {"spec_method": "mtp", "spec_tokens": 3, "spec_acceptance": "0.8"}


@pytest.mark.parametrize(
    ("timing", "calibrated", "confidence"),
    [
        (lambda: source(), {"decode": True, "prefill": True}, "high"),
        (lambda: source(None, target(tp=8)), {"decode": False, "prefill": False}, "escalate"),
        (lambda: source(tp=8), {"decode": False, "prefill": False}, "escalate"),
        (lambda: llama(), {"decode": True, "prefill": True}, "high"),
        (lambda: llama(tp=8), {"decode": "transported", "prefill": "transported"}, "interp"),
        (lambda: source(part="mi325x", anchor_allow="part"), {"decode": False, "prefill": False}, "escalate"),
        (lambda: source(anchor_allow="part"), {"decode": True, "prefill": True}, "high"),  # allowed, and not needed
        (
            lambda: source(**DRAFTS, anchor_allow="speculation,speculation_method"),
            {"decode": False, "prefill": False},
            "escalate",
        ),
        (
            lambda: llama(meta={"num_hidden_layers": 8}, anchor_allow="layers"),
            {"decode": False, "prefill": False},
            "escalate",
        ),
        (
            lambda: source(artefact(prefix_caching=True), target(hit_rate=1.0)),
            {"decode": True, "prefill": True},
            "high",
        ),
        (
            lambda: source(artefact(**LLAMA, prefix_caching=True), target(hit_rate=1.0), **ON_LLAMA, tp=8),
            {"decode": "transported", "prefill": False},
            "interp",
        ),
    ],
)
def test_calibrated_is_what_was_measured_in_this_regime(timing, calibrated, confidence):
    told = timing().describe()
    assert told["calibrated"] == calibrated
    if not (told["acceptance"]["confidence"] == "interp" and confidence == "high"):  # lanes beyond the sweep
        assert told["acceptance"]["confidence"] == confidence


def test_an_anchor_of_another_part_is_refused_by_name():
    with pytest.raises(GapscopeError, match=r"does not apply \(1 axis differs\).*Another GPU part: gfx950.*mi325x"):
        source(artefact(), part="mi325x")
    with pytest.raises(GapscopeError, match="Another engine: vllm in the anchor, sglang"):
        source(artefact(), engine="sglang")


def test_words_that_name_no_axis_are_refused():
    with pytest.raises(GapscopeError, match="anchor_allow=colour: 'colour' is none of model, engine"):
        source(artefact(), anchor_allow="colour")
    with pytest.raises(GapscopeError, match="needs an anchor"):
        build_timing(knob_table.resolve({"timing": "anchor"}))
    with pytest.raises(GapscopeError, match="Knob anchor=x has no effect with timing=fixed"):
        knob_table.resolve({"timing": "fixed", "anchor": "x"})


def test_time_between_passes_is_the_anchors():
    assert source(artefact(between_ns=300_000)).between_ns == 300_000
    assert source(artefact(between_ns=300_000), between_passes_ms=1.0).between_ns == 1_000_000
