"""Sparse attention against published scales, and against the formulas by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.deployment import load_model
from engine.timing.analytic import StepModel
from engine.timing.analytic.sparse import indexed_layers, scale_of
from tests.engine.analytic_cases import decode, deployed, queries

ROUNDED = 6e-5  # published to four places


def share(scale, context):
    """What is charged of dense attention."""
    return scale.bounded(float(context)) / context


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("deepseek-v4-pro", {8192: 0.0883, 32768: 0.0305, 130000: 0.0161, 262144: 0.0136}),
        ("deepseek-v4-flash", {8192: 0.0642, 32768: 0.0295, 130000: 0.0209, 262144: 0.0194}),
        ("glm-5.2", {131072: 0.0315, 262144: 0.0237, 364672: 0.0215}),
        ("minimax-m3", {131072: 0.0453, 262144: 0.0375, 364672: 0.0353}),
    ],
)
def test_scales_as_published(name, expected):
    scale = scale_of(load_model(name))
    for context, told in expected.items():
        assert scale.raw(float(context)) == pytest.approx(told, abs=ROUNDED)
        assert share(scale, float(context)) == scale.raw(float(context))


@pytest.mark.parametrize(("context", "expected"), [(8192, 0.095), (130000, 0.624)])
def test_share_of_the_indexer_in_a_layer_that_picks(context, expected):
    pro = load_model("deepseek-v4-pro")
    scale = scale_of(replace(pro, layers=1, sparse=replace(pro.sparse, schedule=(4,))))
    assert scale.index * context / scale.tokens(float(context)) == pytest.approx(expected, abs=5e-4)


def test_a_schedule_with_an_unknown_code_gives_no_answer():
    pro = load_model("deepseek-v4-pro")
    odd = replace(pro, sparse=replace(pro.sparse, schedule=(*pro.sparse.schedule[:-1], 16)))
    assert scale_of(odd) is None
    dense = replace(pro, sparse=None)
    assert StepModel(deployed(odd, "b200-sxm")).prefill_ns(1, 8192) >= StepModel(
        deployed(dense, "b200-sxm")
    ).prefill_ns(1, 8192)


def test_a_schedule_that_is_longer_than_the_model_by_its_mtp_head():
    pro = load_model("deepseek-v4-pro")
    longer = replace(pro, sparse=replace(pro.sparse, schedule=(*pro.sparse.schedule[:61], 0)))
    assert scale_of(longer) == scale_of(pro)
    assert indexed_layers(longer) == 30


def test_short_contexts_are_read_whole():
    # GLM-5.2 at 1,024 tokens: all are picked, and indexing comes on top: 1 + 21/78 x 4096 / (64 x 1088) = 1.0158.
    scale = scale_of(load_model("glm-5.2"))
    assert scale.raw(1024.0) == pytest.approx(1 + 21 / 78 * 4096 / 69632)
    assert share(scale, 1024.0) == 1.0


def test_fallback_by_topk_alone():
    model = load_model("glm-5.2")
    scale = scale_of(replace(model, sparse=replace(model.sparse, index_heads=0, indexed_layers=0)))
    assert scale.kind == "fallback"
    assert [share(scale, x) for x in (1000.0, 4096.0, 100_000.0)] == [1.0, 0.5, 0.15]


def test_an_unfused_indexer_costs_more_and_a_fused_one_nothing_in_decode():
    model = load_model("glm-5.2")
    indexing = 21 / 78 * 4096 / 69632
    assert scale_of(model, 3.3).raw(131072.0) == scale_of(model).raw(131072.0)
    assert share(scale_of(model, 3.3), 131072.0) == pytest.approx(2048 / 131072 + 3.3 * indexing)
    assert scale_of(model).excess == 0.0
    dense = StepModel(deployed(replace(model, sparse=None), "b200-sxm", tp=8)).parts(decode(16, 50_000))
    fused = StepModel(deployed(model, "b200-sxm", tp=8)).parts(decode(16, 50_000))
    unfused = StepModel(deployed(model, "b200-sxm", tp=8, sparse_cost_scale=3.3)).parts(decode(16, 50_000))
    assert fused["decode_attention"] == dense["decode_attention"]
    assert unfused["decode_attention"] / dense["decode_attention"] == pytest.approx(1 + 2.3 * indexing)


@pytest.mark.parametrize("name", ["deepseek-v4-pro", "glm-5.2", "deepseek-v3.2"])
def test_decode_picks_with_attention_data_parallelism_only(name):
    together = StepModel(deployed(name, "b200-sxm", tp=8, attention_dp=8))
    dense = StepModel(deployed(replace(load_model(name), sparse=None), "b200-sxm", tp=8, attention_dp=8))
    scale = scale_of(load_model(name))
    read = together.parts(decode(6, 100_000))["decode_attention"] / dense.parts(decode(6, 100_000))["decode_attention"]
    assert read == pytest.approx(share(scale, 100_000.0), rel=0.04)  # queries move besides


def test_growth_by_what_is_picked():
    """One more sequence of V4-Pro at 205,000 tokens: dense on 8 GPUs it reads them whole, picked a 70th of that."""
    dense, picked = (StepModel(deployed("deepseek-v4-pro", "mi355x", tp=8), picks=p) for p in (None, True))
    steps = [s.decode_ns(9, 205_000) - s.decode_ns(8, 205_000) for s in (dense, picked)]
    read = 61 * 205_000 * 576 * 2 / (8000 * deployed("deepseek-v4-pro", "mi355x").part.bandwidth_share)
    scale = scale_of(load_model("deepseek-v4-pro"))
    assert steps[0] - steps[1] == pytest.approx(read * (1 - share(scale, 205_000)), rel=0.01)
    assert 2.2e6 < read < 2.9e6


def test_prompts_compute_what_the_mean_query_sees():
    # A chunk of 4,096 after 98,304: the mean query sees 100,352.5 tokens. Arithmetic: 2 x 128 heads x 1088 per token.
    model, part = load_model("deepseek-v4-pro"), "b200-sxm"
    step = StepModel(deployed(model, part))
    found = float(step.parts(queries((1, 4096, 98304, 0, 0)))["prefill_attention"][0])
    seen = scale_of(model).tokens(100_352.5)
    rate = 2250e3 * deployed(model, part).part.compute_share
    assert found == pytest.approx(61 * 4096 * seen * 2 * 128 * 1088 / rate)


def test_arrays_and_numbers_agree():
    for name in ("deepseek-v4-pro", "deepseek-v4-flash", "glm-5.2", "minimax-m3"):
        scale = scale_of(load_model(name), 2.0)
        contexts = np.arange(1.0, 300_000.0, 997.0)
        assert scale.bounded(contexts).tolist() == [scale.bounded(x) for x in contexts.tolist()]
