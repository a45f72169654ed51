"""What drafting costs by method."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.deployment import load_model
from engine.errors import GapscopeError
from engine.timing.analytic import StepModel
from engine.timing.analytic.drafters import Drafter, drafter_shape
from tests.engine.analytic_cases import deployed


def drafting_ns(name: str, method: str, drafts: int, batch: int, context: int, **more) -> float:
    deployment = deployed(name, "b200-sxm", tp=8, verify_width=drafts + 1)
    step = StepModel(deployment)
    return Drafter(deployment, method, drafts, **more)(step.work(0, 0, 0, batch, batch * context))


def test_shapes():
    glm = load_model("glm-5.2")
    mtp = drafter_shape(glm, "mtp")
    assert (mtp.layers, mtp.expert_layers, mtp.vocab, mtp.sparse.indexed_layers) == (1, 1, glm.vocab, 1)
    v4 = drafter_shape(load_model("deepseek-v4-pro"), "mtp")  # the 62nd entry of its schedule: window only
    assert (v4.layers, v4.window_layers, v4.window, v4.sparse) == (1, 1, 128, None)
    eagle = drafter_shape(glm, "eagle3")
    assert (eagle.layers, eagle.experts, eagle.vocab, eagle.attention.is_latent) == (1, None, 32_000, False)
    block = drafter_shape(load_model("kimi-k3"), "dspark")
    assert (block.layers, block.window_layers, block.window, block.expert_layers, block.linear) == (3, 3, 128, 3, None)
    assert drafter_shape(glm, "ngram") is None
    small = load_model("qwen3-0.6b")
    assert drafter_shape(load_model("qwen3-32b"), "draft_model", small) is small
    with pytest.raises(GapscopeError, match="draft_preset"):
        drafter_shape(glm, "draft_model")
    with pytest.raises(GapscopeError, match="expected ngram, mtp"):
        drafter_shape(glm, "medusa")


def test_nothing_is_computed_for_ngrams():
    assert drafting_ns("glm-5.2", "ngram", 4, 8, 10_000) == 0


def test_a_draft_model_is_run_once_per_draft():
    """Three drafts of a small model: once over the 4 tokens of each request, then twice over one."""
    small = load_model("qwen3-0.6b")
    step = StepModel(deployed(small, "b200-sxm", tp=8))
    work = replace(step.work(0, 0, 0, 16, 16 * 5000, 4.0), rows=16.0)
    found = drafting_ns("qwen3-32b", "draft_model", 3, 16, 5000, draft_model=small)
    assert found == pytest.approx(step.priced(work) + 2 * step.decode_ns(16, 5000))


@pytest.mark.parametrize("method", ["mtp", "eagle3"])
def test_each_further_draft_adds_the_same(method):
    one, two, four = (drafting_ns("glm-5.2", method, k, 8, 10_000) for k in (1, 2, 4))
    assert 0 < one < two < four
    assert four - two == pytest.approx(2 * (two - one), rel=0.1)
    step = StepModel(deployed("glm-5.2", "b200-sxm", tp=8))
    assert two - one < 0.1 * step.decode_ns(8, 10_000)  # a layer of 78, and a head


def test_a_block_is_drafted_in_one_run():
    one, eight = (drafting_ns("kimi-k3", "dspark", k, 8, 10_000) for k in (1, 8))
    assert eight < 2 * one


def test_prompts_pass_the_drafter_too():
    deployment = deployed("glm-5.2", "b200-sxm", tp=8, verify_width=2)
    work = StepModel(deployment).work(1, 4096, 0, 0, 0)
    assert Drafter(deployment, "mtp", 1)(work) == Drafter(deployment, "mtp", 5)(work) > 0
    assert Drafter(deployment, "mtp", 1)(StepModel(deployment).work(0, 0, 0, 0, 0)) == 0
