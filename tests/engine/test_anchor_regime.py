"""Regimes: how values are read, which differences count, and what the unknown may match."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from anchor_cases import KNOWN, artefact, target

from engine.deployment import Deployment, load_model, load_part
from engine.errors import GapscopeError
from engine.identity import NOT_APPLICABLE, Identity
from engine.timing.anchors import compare, distance, index, judge, load, nearest, ranked, read_anchor, regime, store
from engine.timing.anchors.artefact import NoArtefact
from engine.timing.anchors.canonical import dtype_of, graph_of, model_key, part_of, speculation_of
from engine.timing.anchors.server_args import attention_dp, prefix_caching


def judged(document, asked=None, **options):
    return judge(read_anchor(document, "a"), asked or target(), **options)


def codes(findings):
    return [finding.code for finding in findings]


def row(verdict, axis):
    (found,) = (row for row in verdict.rows if row.axis == axis)
    return found


def test_an_anchor_of_the_very_deployment_applies():
    verdict = judged(artefact())
    assert verdict.distance == 0
    assert verdict.accepted
    assert verdict.confidence == "high"
    assert row(verdict, "part").state == "same"
    assert row(verdict, "part").rule == "one side names the architecture of the other"
    assert row(verdict, "aiter").state == "unknown"


def test_an_mxfp4_anchor_of_one_part_is_refused_on_another_part():
    verdict = judged(artefact(), target(part="mi325x"))
    assert codes(verdict.refusals) == ["axis_part"]
    assert verdict.distance == 1
    assert not verdict.accepted
    assert verdict.confidence == "escalate"
    assert "gfx950" in verdict.refusals[0].sentence
    assert "mi325x" in verdict.refusals[0].sentence


def test_a_part_is_never_assumed_but_an_unnamed_one_is_skipped():
    verdict = judged(artefact(gpu_arch=...))
    assert row(verdict, "part").state == "unknown"
    assert verdict.accepted
    assert codes(judged(artefact(gpu="MI300X", gpu_arch=...), target(part="mi325x")).refusals) == ["axis_part"]


def test_a_quantizer_says_nothing_of_the_dtype():
    verdict = judged(artefact(weight_dtype=..., quantization="quark"))
    assert row(verdict, "weight_dtype").state == "unknown"
    assert verdict.accepted
    assert codes(judged(artefact(weight_dtype="fp8")).refusals) == ["axis_weight_dtype"]


@pytest.mark.parametrize("tool", ["quark", "compressed-tensors", "compressed_tensors", "modelopt", "torchao"])
def test_tools_are_no_dtypes(tool):
    assert dtype_of(tool) is None


def test_two_engines_with_one_checkpoint_are_two_regimes():
    verdict = judged(artefact(backend="sglang"))
    assert codes(verdict.refusals) == ["axis_engine"]


@pytest.mark.parametrize("backend", ["ROCM_AITER_MLA", "aiter", "dsv4", "rocm_aiter_unified_attn"])
def test_attention_flags_of_one_family_match(backend):
    assert judged(artefact(attention_backend=backend)).distance == 0


def test_attention_families_differ():
    assert codes(judged(artefact(attention_backend="TRITON_ATTN")).refusals) == ["axis_attention_family"]


@pytest.mark.parametrize("method", [None, ...], ids=["plain", "unknown"])
def test_a_speculative_target_is_refused_a_plain_or_unknown_anchor(method):
    verdict = judged(artefact(speculative_method=method), target(speculation="spec:3", speculation_method="mtp"))
    assert codes(verdict.refusals) == ["axis_speculation"]


def test_unknown_speculation_matches_off_only():
    assert judged(artefact(speculative_method=...)).distance == 0
    speculating = artefact(speculative_method="deepseek_mtp", speculative_num_tokens=3)
    assert judged(speculating, target(speculation=None)).distance == 1
    assert judged(speculating, target(speculation="spec:3", speculation_method="mtp")).distance == 0
    assert judged(speculating, target(speculation="spec:5", speculation_method="mtp")).distance == 1


def test_the_number_of_drafts_has_two_names_and_its_absence_is_said():
    asked = target(speculation="spec:3", speculation_method="mtp")
    for key in ("speculative_num_tokens", "num_speculative_tokens"):
        assert judged(artefact(speculative_method="mtp", **{key: 3}), asked).accepted
    (found,) = judged(artefact(speculative_method="mtp"), asked).refusals
    assert found.sentence == (
        "Another speculation: spec in the anchor, spec:3 in the target (how many tokens are drafted is unknown of the "
        "anchor: speculative_num_tokens)."
    )
    document = artefact(speculative_method="mtp", speculative_num_tokens=3)
    (found,) = judged(document, target(speculation="spec", speculation_method="mtp")).refusals
    assert "(how many tokens are drafted is unknown of the target)" in found.sentence


def test_methods_that_are_both_known_must_be_one():
    speculating = artefact(speculative_method="eagle3", speculative_num_tokens=3)
    assert codes(judged(speculating, target(speculation="spec:3", speculation_method="mtp")).refusals) == [
        "axis_speculation_method"
    ]
    assert judged(speculating, target(speculation="spec:3", speculation_method=None)).distance == 0


def test_unknown_switches_match_the_default_only():
    default = artefact(env_overrides={})
    switched = artefact(env_overrides={"VLLM_ROCM_USE_AITER_MHA": 0, "VLLM_ROCM_USE_AITER_RMSNORM": 1, "OTHER": 1})
    assert judged(default).distance == 0
    verdict = judged(switched)
    assert row(verdict, "op_switches").anchor == "mha=0,rmsnorm=1"
    assert codes(verdict.refusals) == ["axis_op_switches"]


def test_two_unknown_sides_are_skipped():
    nothing = dict.fromkeys(regime.AXES)
    assert distance(compare(nothing, nothing)) == 0
    assert {row.state for row in compare(nothing, KNOWN)} == {"unknown"}  # off and default match the unknown


def test_versions_of_an_engine_are_two_regimes():
    assert codes(judged(artefact(engine_version="0.13.0")).refusals) == ["axis_engine_version"]
    assert judged(artefact(engine_version=...)).distance == 0


def test_kv_that_nobody_named_is_bf16():
    assert codes(judged(artefact(kv_cache_dtype=...)).refusals) == ["axis_kv_dtype"]
    assert judged(artefact(kv_cache_dtype=...), target(kv_dtype="bf16")).distance == 0


def test_models_match_by_the_last_segment_of_their_names():
    assert judged(artefact(), target(model=model_key("amd/GLM-5.2"))).distance == 0
    assert codes(judged(artefact(), target(model=model_key("zai-org/GLM-4.7"))).refusals) == ["axis_model"]


def test_equal_configs_settle_a_model_without_a_name():
    unnamed = artefact(model=..., config_digest="abc")
    assert judged(unnamed, target(config_digest="abc")).distance == 0
    assert codes(judged(unnamed, target(config_digest="xyz")).refusals) == ["axis_model"]


def test_a_difference_that_is_allowed_is_said():
    verdict = judged(artefact(), target(kv_dtype="bf16"), allow=("kv_dtype",))
    assert verdict.accepted
    assert "allowed_kv_dtype" in codes(verdict.warnings)
    assert row(verdict, "kv_dtype").state == "differs"
    assert row(verdict, "kv_dtype").allowed


@pytest.mark.parametrize(
    ("spelt", "read"),
    [
        ("torch.bfloat16", "bf16"),
        ("fp8_e4m3", "fp8"),
        ("float8_e4m3fn", "fp8"),
        ("auto", None),
        (NOT_APPLICABLE, None),
        ("MXFP4", "mxfp4"),
    ],
)
def test_dtypes_have_many_spellings(spelt, read):
    assert dtype_of(spelt) == read


@pytest.mark.parametrize(
    ("spelt", "read"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "nvidia h100 pcie"),
        ("H200", "h200-sxm"),
        ("AMD Instinct MI355X", "mi355x"),
        ("gfx950", "gfx950"),
        ("NVIDIA GH200 480GB", "nvidia gh200 480gb"),
        ("AMD EPYC", "amd epyc"),
        ("h100_sxm", "h100-sxm"),
        ("NVIDIA H100-SXM5-80GB", "h100-sxm"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("NVIDIA B200 183GB HBM3e", "b200-sxm"),  # 180 in the preset, 183 as the driver has it
        ("GB200 NVL72", "gb200"),
        ("NVIDIA H100 NVL", "nvidia h100 nvl"),
        ("NVIDIA H100 96GB HBM3", "nvidia h100 96gb hbm3"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "nvidia h100 80gb hbm3 mig 1g.10gb"),
        ("h100-double", "h100-double"),
        ("my MI300X", "my mi300x"),
    ],
)
def test_parts_have_many_names(spelt, read):
    assert part_of(spelt) == read


def test_a_users_part_that_is_named_after_another_is_not_that_one():
    assert judged(artefact(gpu_arch="h100-double"), target(part="h100-sxm")).distance == 1
    assert judged(artefact(gpu_arch="h100-sxm"), target(part="h100-double")).distance == 1
    # A preset's name says exactly which, also where it reads like a device's.
    own = replace(load_part("h100-sxm"), name="h100")
    assert regime.of_deployment(Deployment(load_model("qwen3-32b"), own))["part"] == "h100"


def test_one_architecture_of_two_parts_is_not_one_part():
    assert judged(artefact(gpu_arch="gfx942"), target(part="mi300x")).distance == 0
    assert judged(artefact(gpu_arch="mi325x"), target(part="mi300x")).distance == 1


def test_graphs_and_speculation():
    assert [graph_of(v) for v in ("none", "eager", "full", "FULL_AND_PIECEWISE", None)] == [
        "eager",
        "eager",
        "graph",
        "graph",
        None,
    ]
    assert [speculation_of("none", 3), speculation_of("mtp", 3), speculation_of("mtp", None)] == [
        "off",
        "spec:3",
        "spec",
    ]


def test_a_run_and_a_deployment_are_mapped_alike():
    identity = Identity()
    for group, name, value in (
        ("model", "name", "Qwen/Qwen3-32B"),
        ("model", "weights_dtype", "bfloat16"),
        ("model", "kv_dtype", "bfloat16"),
        ("model", "expert_dtype", NOT_APPLICABLE),
        ("kernels", "graph_mode", "full"),
        ("kernels", "attention_backend", "FLASH_ATTN"),
        ("hardware", "part", "NVIDIA H100 80GB HBM3"),
    ):
        identity.set(group, name, value, "test")
    deployed = Deployment(load_model("qwen3-32b"), load_part("h100-sxm"), attention_family="flash_attn")
    assert regime.of_identity(identity) == regime.of_deployment(deployed)


# -- server arguments ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        (None, None),
        ("", None),
        ("--model m", 1),
        ("--disable-dp-attention --dp-size 4", 1),
        ("--enable-dp-attention --dp-size 4", 4),
        ("--enable_dp_attn --attention_dp_size=2", 2),
        ("--enable-dp-attention", 8),
        ("--data-parallel-size=4", 4),
    ],
)
def test_attention_dp_is_read_from_the_command_line(text, ranks):
    assert attention_dp(text, 8) == ranks


@pytest.mark.parametrize(
    ("text", "on"),
    [
        (None, None),
        ("--port 1", None),
        ("--enable-prefix-caching", True),
        ("--no_enable_prefix_caching", False),
        ("--disable-radix-cache", False),
        ("--disable-prefix-caching --enable-prefix-caching", False),
    ],
)
def test_the_cache_is_read_from_the_command_line(text, on):
    assert prefix_caching(text) is on


# -- artefacts and stores --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ([], "expected an object"),
        ({"sweep": []}, "no meta"),
        ({"meta": {}}, "no sweep"),
        ({"meta": {}, "sweep": [{"batch": 1, "prefill_ms": 3}]}, "without decode_ms"),
    ],
)
def test_what_is_no_anchor_says_why(document, reason):
    with pytest.raises(NoArtefact, match=reason):
        read_anchor(document, "a")


@pytest.mark.parametrize(
    ("meta", "reason"),
    [
        ({"decode_observable": "guess"}, "decode_observable is 'guess'"),
        ({"decode_floor_ms": -1}, "decode_floor_ms is -1"),
        ({"benchmark_tp": 2.5}, "benchmark_tp is 2.5"),
        ({"prefill_anchor": {"points": [{"input_len": 8}]}}, "mean_ttft_ms is missing"),
    ],
)
def test_figures_that_cannot_be_are_named(meta, reason):
    with pytest.raises(GapscopeError, match=reason):
        read_anchor(artefact(**meta), "a")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"batch": 1, "decode_ms": -3}, "decode_ms is -3, expected a number above 0."),
        ({"batch": 1, "decode_ms": 0}, "decode_ms is 0, expected a number above 0."),
        ({"batch": 0, "decode_ms": 3}, "batch is 0, expected a number of at least 1."),
        ({"batch": 10**12, "decode_ms": 3}, "batch is 1000000000000, expected a number of at most 1,000,000,000."),
        ({"batch": 1.5, "decode_ms": 3}, "batch is 1.5, expected a whole number."),
        ({"batch": True, "decode_ms": 3}, "batch is True, expected a number of at least 1."),
        ({"decode_ms": 3}, "sweep has a row without batch"),
    ],
)
def test_a_row_that_cannot_be_says_what_is_expected(row, reason):
    with pytest.raises(GapscopeError) as refused:
        read_anchor({**artefact(), "sweep": [row]}, "a")
    assert reason in str(refused.value)


def put(folder: Path, name: str, document) -> None:
    path = folder / "anchors" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document), encoding="utf-8")


def test_measured_widths_win_over_asked_ones():
    anchor = read_anchor(artefact(), "a")
    assert (anchor.tp, anchor.gpus, anchor.middle_context) == (4, 4, 8704.0)


def test_a_folder_is_indexed_without_what_is_no_anchor(tmp_path):
    put(tmp_path, "one", artefact())
    put(tmp_path, "fleet/mi355x/two", artefact(backend="sglang"))
    put(tmp_path, "fleet/a/b/c/deep", artefact())
    put(tmp_path, "report", {"rows": []})
    put(tmp_path, "broken", artefact(decode_floor_ms=-1))
    (tmp_path / "anchors" / "notes.json").write_text("no json", encoding="utf-8")
    assert [entry.name for entry in index(tmp_path)] == ["one", "fleet/mi355x/two"]
    put(tmp_path, "two words", artefact())
    wrong = dict(zip(("broken", "notes", "report", "two words"), store.unsound(tmp_path), strict=True))
    assert all(str(tmp_path / "anchors" / f"{name}.json") in sentence for name, sentence in wrong.items())
    assert "decode_floor_ms is -1" in wrong["broken"]
    assert "is not JSON" in wrong["notes"]
    assert "no meta object" in wrong["report"]
    assert "is no name of an anchor" in wrong["two words"]
    with pytest.raises(NoArtefact, match="no meta"):
        load("report", [tmp_path])
    with pytest.raises(GapscopeError, match="Did you mean one"):
        load("ones", [tmp_path])
    with pytest.raises(GapscopeError, match="not a path"):
        load("../one", [tmp_path])


def test_an_index_of_other_axes_is_made_again(tmp_path):
    put(tmp_path, "vllm", artefact())
    put(tmp_path, "sglang", artefact(backend="sglang"))
    first = index(tmp_path)
    assert len({entry.signature for entry in first}) == 2
    file = tmp_path / "anchors" / "index.json"
    old = json.loads(file.read_text())
    for entry in old["anchors"]:  # as axes without the engine would have merged them
        entry["signature"] = "0" * 16
        del entry["axes"]["engine"]
    file.write_text(json.dumps({**old, "axes_version": "older"}), encoding="utf-8")
    assert index(tmp_path) == first
    assert json.loads(file.read_text())["axes_version"] == regime.AXES_VERSION


def test_a_file_that_changed_is_read_again(tmp_path):
    put(tmp_path, "one", artefact())
    before = index(tmp_path)
    put(tmp_path, "one", artefact(sweep={1: 8.0, 128: 30.0}))
    after = index(tmp_path)
    assert [entry.batches for entry in (*before, *after)] == [(1, 16, 64), (1, 128)]
    assert index(tmp_path) == after


def test_the_nearest_anchor(tmp_path):
    put(tmp_path, "a-tp8", artefact(benchmark_tp=8))
    put(tmp_path, "b-tp4", artefact())
    put(tmp_path, "c-tp4-ep4", artefact(ep=4))
    put(tmp_path, "d-fp8", artefact(weight_dtype="fp8", benchmark_tp=8))
    wide = ranked([tmp_path], target(tp=8))
    assert [one.anchor.name for one in wide] == ["b-tp4", "c-tp4-ep4", "a-tp8", "d-fp8"]
    spread = ranked([tmp_path], target(tp=8, ep=8))
    assert [one.anchor.name for one in spread][:2] == ["c-tp4-ep4", "b-tp4"]
    found = nearest([tmp_path], target(tp=8))
    assert found is not None
    assert found.acceptance.accepted


def test_several_models_need_a_target_that_names_one(tmp_path):
    put(tmp_path, "glm", artefact())
    put(tmp_path, "kimi", artefact(model="moonshotai/Kimi-K2"))
    found = nearest([tmp_path], target())
    assert found is not None
    assert found.anchor.name == "glm"
    with pytest.raises(GapscopeError, match="several models"):
        nearest([tmp_path], target(model=None))
    assert nearest([tmp_path / "none"], target()) is None
