"""Anchors made of recordings and of client results, the command, and the example in the docs."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from anchor_cases import artefact
from timing_fakes import PASS_COLUMNS, FakeBundle, truth_ns

from engine import knobs as knob_table
from engine.cli import main as cli
from engine.errors import GapscopeError
from engine.identity import Identity
from engine.timing import FitSource, build_timing
from engine.timing.anchors import judge, of_run, read_anchor, regime
from engine.timing.anchors.build import document_of
from engine.timing.anchors.client_results import document_of as of_results
from engine.timing.anchors.model import model_of
from engine.timing.anchors.target import UNKNOWN

GOLDEN = Path(__file__).parent / "golden"
DOCS = Path(__file__).parents[2] / "docs" / "timing.md"
SAMPLES = Path(__file__).parents[2] / "sample_runs"


# -- recordings ------------------------------------------------------------------------------------------------


def recorded(run_id="sweep", kind="sweep", scale=1.0, mixed=False, **facts):
    """Passes of :func:`truth_ns`: batches 1 to 8 at four contexts, prompts of four lengths after three contexts."""
    geometries = [(0, 0, 0, b, b * c) for b in (1, 2, 4, 8) for c in (512, 1024, 2048, 4096) for _ in range(3)]
    geometries += [(1, t, k, 0, 0) for t in (64, 128, 256, 512) for k in (0, 1024, 4096) for _ in range(3)]
    if mixed:
        geometries += [(1, t, 0, 4, 4096) for t in (64, 128, 256, 512) for _ in range(3)]
    columns = dict(zip(PASS_COLUMNS, np.array(geometries, np.int64).T, strict=True))
    duration = np.array([truth_ns(*geometry) * scale for geometry in geometries]).astype(np.int64)
    start = np.cumsum(duration + 200_000) - duration
    identity = Identity()
    for name, value in facts.items():
        group, _, field = name.partition("__")
        identity.set(group, field, value, "test")
    table = pa.table(
        {
            **columns,
            "phase": ["profile"] * len(duration),
            "start_ns": start,
            "end_ns": start + duration,
            "duration_ns": duration,
            "period_ns": duration + 200_000,
        }
    )
    return FakeBundle(run_id, kind, {"passes": table}, identity)


def timing_of(document, **knobs):
    return build_timing(knob_table.resolve({"timing": "anchor", **knobs}), model_of(read_anchor(document, "a")))


def test_a_recording_becomes_the_curves_that_it_followed():
    timing = timing_of(document_of([FitSource(recorded())]))
    for batch in (1, 2, 4, 8):
        for context in (512, 1536, 4096):
            asked = (0, 0, 0, batch, batch * context)
            assert timing.pass_ns(*asked) == pytest.approx(truth_ns(*asked), rel=0.01)
    for tokens, cached in ((64, 0), (512, 0), (200, 1000), (512, 4096)):
        asked = (1, tokens, cached, 0, 0)
        assert timing.pass_ns(*asked) == pytest.approx(truth_ns(*asked), rel=0.01)
    assert timing.between_ns == 200_000


def test_what_was_measured_is_said():
    document = document_of([FitSource(recorded())])
    anchor = read_anchor(document, "a")
    assert anchor.observable == "pass"
    assert [point.batch for point in anchor.sweep] == [1, 2, 4, 8]
    assert {point.context for point in anchor.grid if point.batch == 8} == {512.0, 1024.0, 2048.0, 4096.0}
    (source,) = document["meta"]["sources"]
    assert (source["run_id"], source["passes"]) == ("sweep", 84)
    assert source["tables"] == {"passes": "sweep/passes"}


def test_mixed_passes_choose_how_they_are_composed():
    # made of sums
    document = document_of([FitSource(recorded(mixed=True))])
    assert document["meta"]["mixed_composition"] == "sum"
    assert document["meta"]["mixed_errors"]["sum"] < 0.001 < document["meta"]["mixed_errors"]["marginal"]
    asked = (1, 256, 0, 4, 4096)
    assert timing_of(document).pass_ns(*asked) == pytest.approx(truth_ns(*asked), rel=0.01)


def test_the_level_is_that_of_the_run():
    both = [FitSource(recorded()), FitSource(recorded("run", "measured", scale=1.3))]
    document = document_of(both)
    assert document["meta"]["level_of"] == "run"
    asked = (0, 0, 0, 4, 4 * 1024)
    assert timing_of(document).pass_ns(*asked) == pytest.approx(1.3 * truth_ns(*asked), rel=0.01)


FACTS = {
    "source__engine": "vLLM",
    "source__version": "0.14.1",
    "model__name": "Qwen/Qwen3-32B",
    "model__weights_dtype": "torch.bfloat16",
    "model__kv_dtype": "fp8_e4m3",
    "kernels__attention_backend": "FLASH_ATTN",
    "kernels__graph_mode": "piecewise",
    "speculation__method": "eagle3",
    "speculation__draft_tokens": 3,
    "hardware__part": "NVIDIA H100 80GB HBM3",
    "topology__tp": 2,
}


@pytest.mark.parametrize("facts", [FACTS, {}, {"speculation__method": "none", "kernels__graph_mode": "eager"}])
def test_an_anchor_applies_to_the_run_that_it_was_made_of(facts):
    bundle = recorded(**facts)
    anchor = read_anchor(document_of([FitSource(bundle)]), "a")
    assert regime.of_anchor(anchor) == regime.of_identity(bundle.identity)
    verdict = judge(anchor, of_run(bundle.identity))
    assert verdict.accepted
    assert verdict.prefill_accepted


def test_a_recording_without_decodes_is_no_anchor():
    bundle = recorded()
    table = bundle.tables_["passes"]
    bundle.tables_["passes"] = table.filter(np.asarray(table["num_decode_requests"]) == 0)
    with pytest.raises(GapscopeError, match="passes that only decode"):
        document_of([FitSource(bundle)])


# -- result files of clients -----------------------------------------------------------------------------------


def result(folder, name, concurrency, prompts=None, length=1024, lines=False, **figures):
    count = prompts or concurrency
    value = {
        "backend": "vllm",
        "model_id": "meta-llama/Llama-3.1-8B",
        "max_concurrency": concurrency,
        "num_prompts": count,
        "completed": count,
        "total_input_tokens": length * count,
        "total_output_tokens": 128 * count,
        "median_itl_ms": 10.0,
        "mean_tpot_ms": 10.5,
        "mean_ttft_ms": 40.0,
        **figures,
    }
    path = folder / name
    text = json.dumps(value)
    path.write_text('{"max_concurrency": 999}\n' + text + "\n" if lines else text, encoding="utf-8")
    return path


def test_a_sweep_of_single_waves(tmp_path):
    files = [
        result(tmp_path, f"{c}.json", c, median_itl_ms=8.0 + c, mean_tpot_ms=8.5 + c, lines=c == 4) for c in (4, 1, 16)
    ]
    files.append(result(tmp_path, "short.json", 1, length=512, mean_ttft_ms=25.0))
    document = of_results(files, {"gpu_arch": "h100-sxm", "tp": 1, "prefix_caching": False})
    assert document["sweep"] == [
        {"batch": 1, "decode_ms": 9.0},
        {"batch": 4, "decode_ms": 12.0},
        {"batch": 16, "decode_ms": 24.0},
    ]
    meta = document["meta"]
    assert (document["backend"], meta["decode_observable"]) == ("vllm", "median_itl_single_wave")
    assert (meta["model"], meta["input_len"], meta["output_len"]) == ("meta-llama/Llama-3.1-8B", 1024, 128)
    assert meta["prefill_anchor"]["points"] == [
        {"input_len": 512, "mean_ttft_ms": 25.0},
        {"input_len": 1024, "mean_ttft_ms": 40.0},
    ]
    anchor = read_anchor(document, "a")
    assert regime.of_anchor(anchor)["part"] == "h100-sxm"


@pytest.mark.parametrize(
    ("figures", "prompts", "observable", "ms"),
    [
        ({}, 64, "median_itl", 10.0),
        ({"median_itl_ms": None}, 8, "mean_tpot", 10.5),
        ({"median_itl_ms": 30.0}, 8, "mean_tpot", 10.5),  # chunks of three tokens
    ],
)
def test_a_sweep_has_one_observable(tmp_path, figures, prompts, observable, ms):
    files = [result(tmp_path, "1.json", 1), result(tmp_path, "8.json", 8, prompts, **figures)]
    document = of_results(files)
    assert document["meta"]["decode_observable"] == observable
    assert [row["decode_ms"] for row in document["sweep"]] == [ms, ms]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"max_concurrency": None}, "does not say max_concurrency"),
        ({"completed": 7}, "7 of 8 requests were completed"),
        ({"median_itl_ms": None, "mean_tpot_ms": None}, "neither median_itl_ms nor mean_tpot_ms"),
        ({"model_id": "other"}, "several of model"),
        ({"max_concurrency": 1, "num_prompts": 8}, "both have 1 requests at once"),
        ({"total_input_tokens": 8 * 99}, "expected one length"),
    ],
)
def test_results_that_make_no_sweep(tmp_path, change, reason):
    files = [result(tmp_path, name, c) for name, c in (("1.json", 1), ("2.json", 2))]
    files.append(result(tmp_path, "8.json", 8, **change))
    with pytest.raises(GapscopeError, match=reason):
        of_results(files)


@pytest.mark.parametrize("text", ["", "[]", "no json", "1\n2"])
def test_files_that_are_no_results(tmp_path, text):
    path = tmp_path / "r.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(GapscopeError, match="neither a JSON object"):
        of_results([path])


# -- the command -----------------------------------------------------------------------------------------------


def golden(name, text):
    file = GOLDEN / name
    if os.environ.get("GAPSCOPE_WRITE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def command(capsys, *arguments):
    code = cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def stores(tmp_path):
    return ("--store", SAMPLES, "--store", tmp_path)


@pytest.fixture
def toy(capsys, stores, tmp_path):
    """A store with an anchor of the sweep, and one of a run's warm-up at its level."""
    for name, sources in (("toy", ["fpm_sweep"]), ("toy-warm", ["fpm_sweep", "ample8:warmup"])):
        code, out, _ = command(capsys, "anchor", "build", *sources, "--name", name, *stores)
        assert (code, out) == (0, f"{tmp_path / 'anchors' / name}.json\n")
    return stores


def test_listed_and_checked(capsys, toy):
    code, out, err = command(capsys, "anchor", "list", *toy)
    assert (code, err) == (0, "")
    golden("anchor_list.txt", out)
    code, out, err = command(capsys, "anchor", "check", "ample8", *toy)
    assert (code, err) == (0, "")
    golden("anchor_check.txt", out)


def test_help_teaches(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = ""
    for action in ([], ["build"], ["import"], ["list"], ["check"]):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["anchor", *action, "--help"])
        assert stopped.value.code == 0
        text += capsys.readouterr().out
    golden("anchor_help.txt", text)


def test_an_anchor_that_does_not_apply(capsys, tmp_path):
    stores = ("--store", SAMPLES, "--store", tmp_path)
    (tmp_path / "glm.json").write_text(json.dumps(artefact()), encoding="utf-8")
    code, _, err = command(capsys, "anchor", "import", tmp_path / "glm.json", "--name", "glm", *stores)
    assert (code, err.count("batches 1 to 64")) == (0, 1)
    code, out, _ = command(capsys, "anchor", "check", "ample8", *stores, "--format", "json")
    (told,) = json.loads(out)
    assert code == 1
    assert told["accepted"]["decode"] is False
    assert [finding["code"] for finding in told["refusals"]] == [
        "axis_model",
        "axis_engine_version",
        "axis_weight_dtype",
        "axis_kv_dtype",
        "axis_attention_family",
        "axis_graph_mode",
        "axis_part",
    ]
    axes = "model,engine_version,weight_dtype,kv_dtype,attention_family,graph_mode,part"
    code, _, _ = command(capsys, "anchor", "check", "ample8", "--allow", axes, *stores)
    assert code == 0


def test_a_replay_with_an_anchor_and_its_refusal_on_another_part(capsys, toy, tmp_path):
    common = ("replay", "--like", "ample8", *toy, "--set", "duration_s=2", "--set", "warmup_s=1")
    code, out, _ = command(capsys, *common, "--anchor", "toy-warm", "--title", "anchored")
    assert code == 0
    from engine.bundle import find_bundle

    made = find_bundle([tmp_path], out.strip())
    assert made.identity.value("timing", "kind") == "anchor"
    assert made.identity.value("timing", "calibrated") == {"decode": True, "prefill": True}
    assert made.identity.value("timing", "regime")["part"] == "amd epyc"
    assert [entry["run_id"].partition("-")[0] for entry in made.identity.value("timing", "fitted_on")] == [
        "fpm_sweep",
        "ample8",
    ]
    assert made.identity.value("hardware", "part") == "AMD EPYC"
    # the replay carries its anchor: it is varied without the store's
    shutil.rmtree(tmp_path / "anchors")
    again = ("replay", "--like", out.strip(), *toy, "--set", "lanes=4", "--title", "varied")
    code, out, _ = command(capsys, *again)
    assert code == 0
    varied = find_bundle([tmp_path], out.strip())
    assert varied.identity.value("timing", "model_digest") == made.identity.value("timing", "model_digest")
    code, _, err = command(capsys, *again, "--set", "part=h100-sxm")
    assert code == 2
    assert "does not apply (1 axis differs): Another GPU part: amd epyc in the anchor, h100-sxm in the target" in err


def test_an_anchor_that_names_no_part_and_a_part_that_is_named(capsys, toy, tmp_path):
    common = ("replay", "--like", "ample8", *toy, "--set", "duration_s=2", "--set", "warmup_s=1")
    code, out, _ = command(capsys, *common, "--anchor", "toy", "--set", "part=h100-sxm", "--title", "elsewhere")
    assert code == 0
    from engine.bundle import find_bundle

    made = find_bundle([tmp_path], out.strip())
    assert made.identity.value("hardware", "part") == "h100-sxm"
    assert made.identity.value("hardware", "driver") is None


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("anchor check ample8", "The stores hold no anchor"),
        ("anchor check ample8 --anchor toy", "There is no anchor 'toy'"),
        ("anchor build ample8 --name ../x", "'../x' is no name of an anchor"),
        ("anchor build ample8 --name index", "'index' is no name of an anchor"),
        ("anchor import absent.json --name x", "Cannot read absent.json"),
        ("anchor import absent.json --name x --set tp", "expected KEY=VALUE"),
        ("replay --like ample8 --timing anchor", "needs an anchor"),
        ("replay --like ample8 --anchor x --fit fpm_sweep", "leave out --fit"),
        ("replay --like ample8 --anchor toy", "There is no anchor 'toy'"),
    ],
)
def test_bad_input_is_one_sentence(capsys, stores, arguments, reason):
    code, out, err = command(capsys, *arguments.split(), *stores)
    assert (code, out) == (2, "")
    assert reason in err
    assert err.count("\n") == 1


def test_a_file_that_is_no_anchor_says_why(capsys, stores, tmp_path):
    (tmp_path / "r.json").write_text('{"meta": {}}', encoding="utf-8")
    code, _, err = command(capsys, "anchor", "import", tmp_path / "r.json", "--name", "r", *stores)
    assert (code, "r has no sweep" in err) == (2, True)


def test_files_that_are_no_anchors_are_named(capsys, toy, tmp_path):
    (tmp_path / "anchors" / "half.json").write_text('{"meta"', encoding="utf-8")
    (tmp_path / "anchors" / "list.json").write_text("[]", encoding="utf-8")
    for action in (["list"], ["check", "ample8"]):
        code, out, err = command(capsys, "anchor", *action, *toy)
        assert (code, "half" in out) == (0, False)
        assert len(err.splitlines()) == 2
        assert "half.json is not JSON" in err
        assert "list.json: list holds list: expected an object" in err
    assert command(capsys, "anchor", "check", "ample8", "--anchor", "toy", *toy)[2] == ""


def test_what_was_built_is_not_changed_by_hand(capsys, toy, tmp_path):
    file = tmp_path / "anchors" / "toy-warm.json"
    document = json.loads(file.read_text(encoding="utf-8"))
    before = model_of(read_anchor(document, "a"))["lineage"]["sources"]
    assert [entry["run_id"].partition("-")[0] for entry in before] == ["fpm_sweep", "ample8"]
    document["sweep"][0]["decode_ms"] *= 2
    file.write_text(json.dumps(document), encoding="utf-8")
    replay = ("replay", "--like", "ample8", *toy, "--set", "duration_s=2", "--set", "warmup_s=1")
    code, _, err = command(capsys, *replay, "--anchor", "toy-warm")
    assert (code, err.count("\n")) == (2, 1)
    assert "Anchor toy-warm was changed after it was built" in err
    code, out, err = command(capsys, "anchor", "list", *toy)
    assert (code, "toy-warm" in out, "toy-warm was changed" in err) == (0, False, True)
    # without its digest it is one of many written by hand, and that is said
    del document["built_digest"]
    by_hand = read_anchor(document, "a")
    assert model_of(by_hand)["lineage"]["sources"] == []
    assert "no_lineage" in [finding.code for finding in judge(by_hand, UNKNOWN).warnings]
    assert "no_lineage" not in [f.code for f in judge(read_anchor(artefact(), "a"), UNKNOWN).warnings]


def test_a_name_is_not_taken_twice(capsys, stores, tmp_path):
    one, two = (tmp_path / name for name in ("one.json", "two.json"))
    one.write_text(json.dumps(artefact()), encoding="utf-8")
    two.write_text(json.dumps(artefact({1: 5.0})), encoding="utf-8")
    assert command(capsys, "anchor", "import", one, "--name", "a", *stores)[0] == 0
    assert command(capsys, "anchor", "import", one, "--name", "a", *stores)[0] == 0
    code, _, err = command(capsys, "anchor", "import", two, "--name", "a", *stores)
    assert (code, "holds another anchor" in err) == (2, True)


# -- the docs --------------------------------------------------------------------------------------------------


def test_the_example_of_the_docs_is_an_anchor():
    text = DOCS.read_text(encoding="utf-8")
    found = re.search(r"<!-- anchor example -->\n```json\n(.*?)```", text, re.DOTALL)
    assert found
    anchor = read_anchor(json.loads(found.group(1)), "example")
    assert [point.batch for point in anchor.sweep] == [1, 8, 64]
    values = {"part": "h100-sxm", "model_preset": "llama-3.1-8b", "engine": "vllm"}
    timing = build_timing(knob_table.resolve({"timing": "anchor", **values}), model_of(anchor))
    assert timing.pass_ns(0, 0, 0, 8, 8 * 1088) == 7_400_000
    assert timing.describe()["calibrated"] == {"decode": True, "prefill": True}
    assert {row.axis: row.state for row in timing.acceptance.rows}["engine"] == "same"


def test_the_docs_name_every_axis_and_refusal():
    text = DOCS.read_text(encoding="utf-8")
    section = text[text.index("## Anchors") :]
    for axis, words in regime.AXES.items():
        assert f"`{axis}`" in section, axis
        assert words


# -- what others write -----------------------------------------------------------------------------------------

ODD = (None, True, -1, 0, 1.5, 1e300, "", "x", "8", [], [1], [{}], {}, {"a": 1})


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def replaced(value, path, by):
    if not path:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], by)
    return copy


def rich():
    """An artefact with every part."""
    pack = {
        "seq_len": 1024,
        "budget_tokens": 8192,
        "repeats": 3,
        "ms_per_token": 0.1,
        "points": [{"step_tokens": n, "seqs": n // 1024, "last_ttft_ms": 20 + n / 10} for n in (1024, 4096)],
    }
    probe = {
        "points": [{"input_len": n, "mean_ttft_ms": 20 + n / 10, "context": 0, "prompts": 1} for n in (1024, 8192)],
        "curve_fit": {"fixed_ms": 20, "ms_per_token": 0.1, "ms_per_token_sq": 0.0},
        "pairwise_ms_per_token": [0.1],
        "packed": pack,
    }
    return artefact(
        grid={(16, 9000): 13.0},
        prefill_anchor=probe,
        env_overrides={"VLLM_ROCM_USE_AITER_MHA": "1"},
        server_args="--tp 4",
        num_hidden_layers=78,
        decode_floor_ms=5.0,
        between_ns=1,
        sources=[{"run_id": "r", "phases": None, "tables": {}}],
        host={"dispatch_lag_ms": {"value": 1.0}},
        mixed_composition="sum",
        speculative_acceptance_length=None,
    )


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_odd_values_are_read_or_refused_in_a_sentence(odd):
    axes = ",".join((*regime.AXES, "layout", "layers"))
    knobs = knob_table.resolve({"timing": "anchor", "anchor_allow": axes})
    document, said = rich(), []
    for path in places(document):
        try:
            timing = build_timing(knobs, model_of(read_anchor(replaced(document, path, odd), "a")))
            assert timing.pass_ns(2, 3000, 100, 7, 70_000) >= 1
            json.dumps(timing.describe())
        except GapscopeError as error:
            said.append(str(error))
    assert not [sentence for sentence in said if "\n" in sentence]
