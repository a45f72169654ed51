"""The analytic source behind the seam, in knobs, in a chain, and in what a replay says it ran on."""

from __future__ import annotations

import json
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bundle import open_bundle
from engine.bundle.schema import RESOLUTIONS
from engine.deployment import load_part
from engine.errors import GapscopeError
from engine.identity import Identity, diff
from engine.knobs import resolve
from engine.replay import knobs_from_run, replay
from engine.timing import FitSource, PassQueries, build_timing, fit
from engine.timing.analytic import StepModel
from engine.timing.contract import decode_run
from engine.timing.notes import notes_of
from engine.traces.tree import Conversation, Play, Segment, Trace, Turn
from tests.engine.analytic_cases import deployed, queries
from tests.engine.timing_fakes import bundle

QWEN = {"timing": "analytic", "part": "h100-sxm", "model_preset": "qwen3-8b"}
WIDE = {"timing": "analytic", "part": "b200-sxm", "model_preset": "deepseek-v4-pro", "tp": 8, "ep": 8}
MTP = {"spec_method": "mtp", "spec_tokens": 3, "spec_mean_length": 2.5}
CASES = {
    "dense": QWEN,
    "piecewise": QWEN | {"graph_mode": "piecewise", "pass_scale": 0.7},
    "no graphs": QWEN | {"graph_mode": "none", "launch_us": 5},
    "ranks": WIDE | {"attention_dp": 8},
    "ranks together": WIDE | {"attention_dp": 4, "dp_price": "combined"},
    "uniform": WIDE | {"model_preset": "glm-5.2", "sparse_cost_scale": 3.3, "kv_dtype": "fp8"},
    "linear": WIDE | {"model_preset": "qwen3.5-397b-a17b", "ep": 1},
    "latent": WIDE | {"model_preset": "deepseek-v3", "dcp": 4, "pp": 2},
    "windows": QWEN | {"model_preset": "gpt-oss-120b", "tp": 2},
    "mtp": WIDE | MTP,
    "eagle3": QWEN | MTP | {"spec_method": "eagle3"},
    "dspark": WIDE | MTP | {"spec_method": "dspark", "model_preset": "kimi-k3"},
    "draft model": QWEN | MTP | {"spec_method": "draft_model", "draft_preset": "qwen3-0.6b"},
    "given cost": QWEN | MTP | {"spec_draft_cost": 0.1},
}


class Made:
    """What is read of a measured run to replay it."""

    run_id, kind = "made-up", "measured"
    lineage: ClassVar[dict] = {}
    phases = ()

    def __init__(self) -> None:
        self.identity = Identity()


row = st.tuples(
    st.integers(0, 9), st.integers(0, 30_000), st.integers(0, 200_000), st.integers(0, 300), st.integers(0, 3_000_000)
)


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=25, deadline=None)
@given(rows=st.lists(row, min_size=1, max_size=20))
def test_an_explanation_adds_up_to_the_answer(case, rows):
    timing = build_timing(resolve(CASES[case]))
    asked = PassQueries(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))
    told = timing.explain(asked)
    assert told.total_ns.tolist() == [timing.pass_ns(*one) for one in rows]
    assert told.total_ns.tolist() == [timing.pass_ns(*one) for one in rows]  # from what was kept, too
    for part in (told.prefill_ns, told.decode_ns, told.overhead_ns):
        assert (part >= 0).all()
    assert set(told.resolution.tolist()) == {RESOLUTIONS.index("analytic")}
    assert told.sources == ("analytic",)


def test_parts_belong_to_who_computes():
    timing = build_timing(resolve(QWEN))
    told = timing.explain(queries((1, 600, 0, 0, 0), (0, 0, 0, 8, 80_000), (1, 600, 0, 8, 80_000)))
    assert told.decode_ns[0] == told.prefill_ns[1] == 0
    assert min(told.prefill_ns[2], told.decode_ns[2], *told.overhead_ns) > 0
    step = StepModel(deployed("qwen3-8b", "h100-sxm"))
    assert told.overhead_ns.tolist() == pytest.approx([step.fixed.kernels_ns + step.fixed.host_ns] * 3, abs=1)
    assert told.site_names == ("qwen3-8b on 1 h100-sxm",)


def test_runs_of_decodes_are_the_passes_one_by_one():
    timing = build_timing(resolve(QWEN | {"between_passes_ms": 0.2}))
    contexts = range(4000, 4800, 8)
    starts, durations, end = decode_run(timing, 8, contexts, 1_000, 1 << 60)
    assert durations == [timing.pass_ns(0, 0, 0, 8, context) for context in contexts]
    assert starts[1] == 1_000 + durations[0] + 200_000
    assert end == starts[-1] + durations[-1] + 200_000
    assert len(decode_run(timing, 8, contexts, 0, durations[0] + 200_001)[0]) == 2


def test_verification_is_priced_once():
    """The width is in the step and nothing wraps the source; a given cost is a share of a plain decode."""
    plain, free, given_ = (
        build_timing(resolve(QWEN | more))
        for more in ({}, MTP | {"spec_method": "ngram"}, MTP | {"spec_method": "ngram", "spec_draft_cost": 0.1})
    )
    step = StepModel(deployed("qwen3-8b", "h100-sxm"))
    assert free.pass_ns(0, 0, 0, 8, 80_000) == round(step.decode_ns(8, 10_000, 4))
    assert plain.pass_ns(0, 0, 0, 8, 80_000) == round(step.decode_ns(8, 10_000))
    expected = step.decode_ns(8, 10_000, 4) + 0.3 * step.decode_ns(8, 10_000)
    assert given_.pass_ns(0, 0, 0, 8, 80_000) == round(expected)
    assert build_timing(resolve(WIDE | MTP)).describe()["drafting"]["shape"]["layers"] == 1


def test_the_description_holds_the_whole_deployment():
    described = build_timing(resolve(WIDE | {"attention_dp": 8})).describe()
    assert described["kind"] == "analytic"
    assert described["deployment"]["model"]["experts"]["count"] == 384
    assert described["deployment"]["part"]["hbm_tb_s"] == load_part("b200-sxm").hbm_tb_s
    assert json.loads(json.dumps(described)) == described
    assert described["sparse_attention"] == "schedule"
    assert described["batch_of"] == "rank"
    assert build_timing(resolve(CASES["ranks together"])).describe()["batch_of"] == "engine"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"part": "h100-sxm"}, "no effect with timing=fpm"),
        ({"timing": "fixed", "tp": 8}, "no effect with timing=fixed"),
        ({"timing": "analytic", "part": "h100-sxm"}, "Knob model_preset is not set"),
        ({"timing": "analytic", "model_preset": "qwen3-8b"}, "Knob part is not set"),
        ({"on_refused": "analytic"}, "Knob part is not set"),
        ({"timing": "fixed", "on_refused": "analytic"}, "on_refused=analytic has no effect with timing=fixed"),
        (QWEN | {"attention_dp": 2}, "attention_dp=2: the ranks share"),
        (QWEN | {"tp": 4, "ep": 3}, "an ep that divides tp"),
        (QWEN | {"tp": 4, "dcp": 3}, "Knob dcp=3"),
        (QWEN | {"ep_imbalance": 1.5}, "no effect with ep=1"),
        (QWEN | {"launch_us": 5}, "no effect with graph_mode=full"),
        (QWEN | {"draft_preset": "qwen3-0.6b"}, "no effect with spec_method other than draft_model"),
        (QWEN | MTP | {"spec_method": "draft_model"}, "expected the draft model by its preset"),
        (QWEN | MTP | {"spec_pricing": "as_measured"}, "no effect with timing=analytic"),
        (QWEN | {"kv_dtype": "fp7"}, "one of fp32, bf16"),
    ],
)
def test_knobs_that_contradict_each_other_are_refused(changes, named):
    with pytest.raises(GapscopeError, match=named):
        resolve(changes)


def test_presets_that_are_not_there():
    with pytest.raises(GapscopeError, match="Did you mean h100-sxm"):
        build_timing(resolve(QWEN | {"part": "h100-sx"}))


def test_another_timing_forgets_the_deployment():
    values = resolve({"timing": "fixed"}, resolve(WIDE))
    assert (values["tp"], values["part"], values["model_preset"]) == (1, "", "")


def test_a_measured_run_names_no_deployment_to_price():
    """A part is never assumed, nor are widths: those of the run are its own."""
    run = Made()
    run.identity.set("topology", "tp", 8, "engine log")
    run.identity.set("topology", "attention_dp", 2, "engine log")
    assert knobs_from_run(run) == {"attention_dp": 2}


# A chain: fitted passes, and the deployment beyond them.


@pytest.fixture(scope="module")
def fitted():
    return fit([FitSource(bundle("sweep"))])


@pytest.mark.parametrize("more", [{}, MTP | {"spec_draft_cost": 0.1}, MTP | {"spec_method": "eagle3"}])
def test_what_was_measured_comes_first(fitted, more):
    chained = QWEN | {"timing": "fpm", "on_refused": "analytic"} | more
    timing = build_timing(resolve(chained), fitted)
    beyond = build_timing(resolve(QWEN | more))
    within = build_timing(resolve({"timing": "fpm", "on_refused": "abort"} | more), fitted)
    rows = [(0, 0, 0, 1, 1800), (0, 0, 0, 500, 500_000), (1, 100, 1000, 2, 4000), (2, 60_000, 0, 1, 9)]
    told = timing.explain(queries(*rows))
    assert told.total_ns.tolist() == [timing.pass_ns(*one) for one in rows]
    assert [told.sources[s] for s in told.source] == ["fpm", "analytic", "fpm", "analytic"]
    assert [told.site_names[s] for s in told.sites][1] == "qwen3-8b on 1 h100-sxm"
    for n, one in enumerate(rows):
        if told.sources[told.source[n]] == "fpm":
            assert told.total_ns[n] == within.pass_ns(*one)
            assert RESOLUTIONS[told.resolution[n]] in ("interpolated", "exact")
        else:  # at the level of nobody's measurements
            assert told.total_ns[n] == beyond.pass_ns(*one)
            assert RESOLUTIONS[told.resolution[n]] == "analytic"
            with pytest.raises(GapscopeError, match="outside the measured domain"):
                within.pass_ns(*one)
    assert timing.describe()["kind"] == "fpm"
    assert timing.describe()["fallback"]["deployment"]["model"]["name"] == "qwen3-8b"
    assert timing.between_ns == within.between_ns


def test_a_chain_of_what_is_all_measured_names_one_link(fitted):
    timing = build_timing(resolve(QWEN | {"timing": "fpm", "on_refused": "analytic"}), fitted)
    assert timing.explain(queries((1, 100, 1000, 2, 4000))).sources == ("fpm",)


# What a replay of it says.


def trace() -> Trace:
    """A play of two turns that add 200 and 400 prompt tokens, 20 outputs each."""
    turns = [Turn(20, 0, tuple(Segment(f"s{m}", 200) for m in range(n + 1))) for n in range(2)]
    return Trace("two", "made up", "0" * 64, [Play("p", [Conversation("c", turns)])])


def test_a_replay_names_what_it_was_priced_for(tmp_path):
    values = QWEN | {"tp": 2, "replicas": 3, "lanes": 3, "kv_dtype": "fp8", "graph_mode": "piecewise"}
    run = open_bundle(tmp_path / replay(trace(), values, store=tmp_path))
    said = run.identity
    assert said.value("hardware", "part") == "h100-sxm"
    assert said.value("hardware", "count") == 6
    assert said.value("model", "name") == "qwen3-8b"
    assert (said.value("model", "weights_dtype"), said.value("model", "kv_dtype")) == ("bf16", "fp8")
    assert (said.value("topology", "tp"), said.value("kernels", "graph_mode")) == (2, "piecewise")
    assert said.value("timing", "deployment") == "qwen3-8b on 2 h100-sxm, analytic"
    assert set(run.table("coverage").column("source").to_pylist()) == {"analytic"}
    assert set(run.table("coverage").column("resolution").to_pylist()) == {"analytic"}
    assert run.lineage["timing"]["deployment"]["tp"] == 2


def test_it_takes_no_name_from_the_run_that_it_is_like(tmp_path):
    """A what-if on another part differs from the run in the regime, and assumes nothing of it."""
    like = open_bundle(tmp_path / replay(trace(), WIDE, store=tmp_path))
    run = open_bundle(tmp_path / replay(trace(), QWEN, store=tmp_path, like=like))
    differing = {(d.group, d.field) for d in diff(like.identity, run.identity) if d.state == "differs" and d.regime}
    assert {("hardware", "part"), ("model", "name"), ("model", "weights_dtype")} <= differing
    for group in ("model", "hardware", "topology", "kernels"):
        assert not [name for g, name, field in run.identity if g == group and "assumed" in field.source]


def test_replays_without_it_say_nothing_of_it(tmp_path):
    run = open_bundle(tmp_path / replay(trace(), {"timing": "fixed"}, store=tmp_path))
    assert not set(run.lineage["config"]) & {"part", "model_preset", "tp", "graph_mode", "kv_dtype"}
    assert run.identity.value("hardware", "part") is None


@pytest.mark.parametrize(
    ("part", "model", "said"),
    [
        ("NVIDIA H100 80GB HBM3", "Qwen/Qwen3-8B", ""),
        ("AMD EPYC", "qwen3-8b", "part h100-sxm where the run is on AMD EPYC"),
        ("AMD EPYC", "stub", "part h100-sxm where the run is on AMD EPYC and model qwen3-8b where the run is of stub"),
        (None, None, ""),
    ],
)
def test_a_fallback_for_another_deployment_is_said(fitted, tmp_path, part, model, said):
    made = Made()
    made.identity.set("hardware", "part", part, "made up")
    made.identity.set("model", "name", model, "made up")
    chained = QWEN | {"timing": "fpm", "on_refused": "analytic"}
    sentence = f"The fallback prices another deployment than the run's: {said}." if said else ""
    described = build_timing(resolve(chained), fitted).describe()
    assert notes_of(described, made.run_id, made.identity) == ([sentence] if said else [])
    run = open_bundle(
        tmp_path / replay(trace(), chained, fitted, store=tmp_path, like=made, title="chained", slug="chained")
    )
    priced = "qwen3-8b on 1 h100-sxm, analytic"
    assert run.identity.value("timing", "fallback") == (f"{priced}. {sentence}" if said else priced)
    assert len(run.identity.value("timing", "deployment_digest")) == 64
