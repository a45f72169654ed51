"""What of an anchor applies to a target: refusals of the whole, of prefill, of packed prefill, and warnings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from anchor_cases import artefact, target

from engine.deployment import Deployment, load_model, load_part
from engine.timing.anchors import judge, keys, read_anchor


def judged(document, asked=None, **options):
    return judge(read_anchor(document, "a"), asked or target(), **options)


def codes(findings):
    return [finding.code for finding in findings]


def probe(*lengths, **more):
    return {"points": [{"input_len": n, "mean_ttft_ms": 20 + n / 10} for n in lengths], **more}


def named(**widths):
    """A deployment that passes can be priced for."""
    return Deployment(load_model("glm-5.2"), load_part("mi355x"), **widths)


# -- the whole -------------------------------------------------------------------------------------------------


def test_another_attention_dp_layout_needs_a_deployment_that_can_be_priced():
    assert codes(judged(artefact(), target(attention_dp=4)).refusals) == ["attention_dp_layout"]
    assert judged(artefact(), target(attention_dp=4), allow=("layout",)).accepted
    assert judged(artefact(), target(attention_dp=4, deployment=named(tp=4, attention_dp=4))).accepted


def test_an_unknown_layout_is_used_as_it_is_and_said():
    verdict = judged(artefact(attention_data_parallel_size=...), target(attention_dp=4))
    assert verdict.accepted
    assert "layout_unknown" in codes(verdict.warnings)
    told = judged(artefact(attention_data_parallel_size=..., server_args="--tp 4"), target(attention_dp=4))
    assert codes(told.refusals) == ["attention_dp_layout"]  # silence on a command line is off


def test_fewer_layers_than_the_model_has_are_not_carried_over():
    layers = load_model("glm-5.2").layers
    asked = target(deployment=named(tp=4))
    assert codes(judged(artefact(num_hidden_layers=8), asked).refusals) == ["depth"]
    assert judged(artefact(num_hidden_layers=layers), asked).accepted


# -- prefill ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "refused"), [(1536.0, []), (1537.0, ["probe_too_short"])])
def test_a_probe_shorter_than_two_thirds_of_the_prompt_leaves_decode_calibrated(asked, refused):
    verdict = judged(artefact(prefill_anchor=probe(512, 1024)), target(prompt_tokens=asked))
    assert codes(verdict.prefill_refusals) == refused
    assert verdict.accepted
    assert verdict.prefill_accepted is (not refused)


def test_a_fitted_curve_may_be_read_further_but_not_any_length():
    document = artefact(prefill_anchor=probe(256, 512, 768, 1024))
    verdict = judged(document, target(prompt_tokens=4096.0))
    assert verdict.prefill == "curve"
    assert verdict.prefill_accepted
    assert "beyond_probe" in codes(verdict.warnings)
    beyond = judged(document, target(prompt_tokens=4097.0))
    assert codes(beyond.prefill_refusals) == ["probe_too_short"]
    assert "more than 4 times as long" in beyond.prefill_refusals[0].sentence
    assert beyond.accepted


def test_a_curve_through_times_that_fall_has_no_rate():
    falling = [{"input_len": n, "mean_ttft_ms": ms} for n, ms in ((1024, 100), (2048, 50), (4096, 20), (8192, 5))]
    verdict = judged(artefact(prefill_anchor={"points": falling}))
    assert codes(verdict.prefill_refusals) == ["no_rate"]
    assert verdict.accepted
    # chunks say nothing of it: a short one after many cached tokens takes longer than a long one after none
    chunks = [
        {"input_len": n, "context": 8192 - n, "mean_ttft_ms": ms} for n, ms in ((1024, 60), (2048, 50), (4096, 40))
    ]
    told = judged(artefact(prefill_anchor={"points": chunks, "ms_per_token": 0.1, "implied_fixed_ms": 20}))
    assert told.prefill_accepted


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        ({1: 8.0, 16: 12.0, 64: 9.7}, []),  # 19 % less
        ({1: 8.0, 16: 12.0, 64: 9.5}, [(64, 16)]),
        ({1: 6.9, 8: 700.0, 16: 8.0, 64: 10.8}, [(16, 8)]),
        ({1: 6.9, 8: 7.4, 64: 1.0}, [(64, 8)]),
    ],
)
def test_more_requests_that_take_less_time_are_said(sweep, said):
    verdict = judged(artefact(sweep))
    assert [(w.figures["batch"], w.figures["smaller"]) for w in verdict.warnings if w.code == "sweep_falls"] == said
    assert verdict.accepted


def test_what_one_batch_says_of_others():
    def sentence(asked):
        return next(w.sentence for w in judged(artefact({8: 9.0}), asked).warnings if w.code == "single_batch")

    assert "other batches cost the same" in sentence(target())
    assert "other batches have the formula's shape" in sentence(target(deployment=named(tp=4)))


@pytest.mark.parametrize("caching", [True, ...], ids=["on", "unknown"])
def test_prompts_measured_with_a_cache_are_refused(caching):
    verdict = judged(artefact(prefix_caching=caching))
    assert codes(verdict.prefill_refusals) == ["cache_state"]
    assert verdict.accepted


def test_a_target_that_always_hits_takes_measured_hits():
    document = artefact(prefix_caching=True)
    assert judged(document, target(hit_rate=0.999)).prefill == "cache_hits"
    assert judged(document, target(hit_rate=0.998)).prefill == "refused"


def test_passes_that_say_what_they_computed_need_no_cache_state():
    assert judged(artefact(prefix_caching=..., prefill_observable="pass")).prefill_accepted


def test_one_length_has_no_rate():
    verdict = judged(artefact(prefill_anchor=probe(8192)))
    assert codes(verdict.prefill_refusals) == ["no_rate"]
    falling = {"points": [{"input_len": 100, "mean_ttft_ms": 9}, {"input_len": 8192, "mean_ttft_ms": 8}]}
    assert codes(judged(artefact(prefill_anchor=falling)).prefill_refusals) == ["no_rate"]
    assert codes(judged(artefact(prefill_anchor=None)).prefill_refusals) == ["no_probe"]


# -- packed prompts: single ones take 20 ms and 0.1 ms per token -----------------------------------------------


def packed(*points, seq_len=1024, budget=8192, repeats=3, rate=0.1):
    pack = {
        "seq_len": seq_len,
        "budget_tokens": budget,
        "repeats": repeats,
        "points": [{"step_tokens": t, "seqs": t // seq_len, "last_ttft_ms": ms} for t, ms in points],
        "ms_per_token": rate,
    }
    return probe(1024, 8192, packed=pack)


GOOD = ((1024, 130.0), (2048, 230.0), (4096, 440.0), (8192, 840.0))


@pytest.mark.parametrize(
    ("pack", "asked", "refused"),
    [
        (packed(*GOOD), {}, []),
        (packed(*GOOD, repeats=1), {}, ["packed_repeats"]),
        (packed(GOOD[0]), {}, ["packed_points"]),
        (packed(GOOD[0], (2048, 130.0), *GOOD[2:]), {}, ["packed_order"]),
        # one prompt of 8,192 tokens: 839.2 ms; 1,300 is 1.55 times that, and the rate gives 0.65 of it
        (packed(*GOOD[:3], (8192, 1300.0)), {}, ["packed_level"]),
        # (20 + 0.2 x 8192) / 840 = 1.97
        (packed(*GOOD, rate=0.2), {}, ["packed_rate"]),
        # the first step is 1 ms per token, the later ones 0.05: and 0.11 is no more than twice 0.1, 0.21 is
        (
            packed((1024, 130.0), (2048, 1154.0), (4096, 1256.4), rate=0.21),
            {"budget": 4096},
            ["packed_level", "packed_first_rung"],
        ),
        (packed(*GOOD), {"budget": 1535}, ["packed_budget_small"]),
        (packed(*GOOD), {"budget": 12289}, ["packed_budget_wide"]),
        (packed(*GOOD), {"prompt_tokens": 2049.0}, ["packed_length"]),
        (packed(*GOOD), {"prompt_tokens": 511.0}, ["packed_length"]),
    ],
)
def test_packed_prompts(pack, asked, refused):
    verdict = judged(artefact(prefill_anchor=pack), target(**{"prompt_tokens": 1024.0, "budget": 8192, **asked}))
    found = codes(verdict.packed_refusals)
    assert found == refused
    assert verdict.packed is (not refused)
    assert verdict.prefill_accepted
    assert set(refused) <= set(codes(verdict.warnings))


# -- warnings --------------------------------------------------------------------------------------------------


def test_a_sweep_narrower_than_asked_is_said_without_a_sign():
    verdict = judged(artefact(), target(requests=160))
    (found,) = (w for w in verdict.warnings if w.code == "sweep_narrow")
    assert "2.5 x past the widest" in found.sentence
    assert found.figures == {"widest": 64, "asked": 160}
    assert verdict.accepted
    assert verdict.confidence == "interp"
    assert not {"high", "low", "over", "under"} & set(found.sentence.replace(":", " ").split())


@pytest.mark.parametrize(
    ("meta", "asked", "code"),
    [
        ({"decode_observable": ...}, {}, "observable_tpot"),
        ({"decode_observable": "median_itl"}, {}, "observable_refilling"),
        ({}, {"tp": 8}, "width_restored"),
        ({}, {"prompt_tokens": 4096.0}, "other_length"),
        ({}, {"prompt_tokens": 16385.0}, "other_length"),
        ({}, {"prompt_tokens": None}, "prompts_unknown"),
        ({}, {"prompt_tokens": 512.0}, "below_probe"),
        ({}, {"prompt_tokens": 9000.0}, "beyond_probe"),
        ({"tp": ..., "benchmark_tp": ...}, {"tp": 2}, "width_unknown"),
        ({}, {}, "straight_line"),
        ({}, {"tp": 8}, "ideal_sharding"),
        ({"input_len": ...}, {}, "context_unknown"),
        # falls with length: 0.1 - 2e-5 n is negative from 5,000 on
        (
            {
                "prefill_anchor": probe(
                    1024, 8192, curve_fit={"fixed_ms": 20, "ms_per_token": 0.1, "ms_per_token_sq": -2e-5}
                )
            },
            {},
            "negative_rate",
        ),
    ],
)
def test_warnings(meta, asked, code):
    verdict = judged(artefact(**meta), target(**asked))
    assert verdict.accepted
    assert code in codes(verdict.warnings)


def test_the_plain_case_warns_of_nothing_else():
    fitted = judged(artefact(prefill_anchor=probe(1024, 2048, 4096, 8192)))
    assert codes(fitted.warnings) == []
    assert codes(judged(artefact(sweep={8: 9.0})).warnings) == ["single_batch", "sweep_narrow", "straight_line"]


def test_keys_that_look_like_slips_are_said():
    document = artefact(wieght_dtype="fp8", foo=1, speculative_tokens=3, client_version="1", gpus=4)
    document |= {"swep": [], "notes": "x"}
    document["meta"]["prefill_anchor"]["curvefit"] = {}
    found = {w.figures["key"]: w.figures["meant"] for w in judged(document).warnings if w.code == "key_not_read"}
    assert found.pop("speculative_tokens") in ("speculative_num_tokens", "num_speculative_tokens")
    found.pop("gpus", None)
    assert found == {"swep": "sweep", "wieght_dtype": "weight_dtype", "curvefit": "curve_fit"}


def test_every_key_of_the_docs_is_known():
    text = (Path(__file__).parents[2] / "docs" / "timing.md").read_text(encoding="utf-8")
    section = text[text.index("## Anchors") : text.index("## Tables")]
    told = set(re.findall(r"`meta\.([a-z_]+)`", section))
    assert told
    assert told <= set(keys.META)


@pytest.mark.parametrize(("tp", "reach"), [(8, "high"), (16, "low"), (None, "unknown")])
def test_how_far_a_width_is_carried(tp, reach):
    assert judged(artefact(), target(tp=tp)).reach == reach
