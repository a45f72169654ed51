"""The Timing page and what says of a timing's regime elsewhere: Identity, Coverage, What-if."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from conftest import Open, run_id
from test_pages import SAMPLES, charts, plain, words

from dashboard.jobs import memory, models
from engine import knobs
from engine.bundle import find_bundle
from engine.deployment import preset_folders
from engine.replay import knobs_from_run, replay
from engine.timing import FitSource, build_timing
from engine.timing.anchors import keep
from engine.timing.anchors.build import document_of
from engine.traces import stored_trace

PRESET = """
extends = "h100-sxm"
hbm_tb_s = 6.7
"""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The samples, and a store with an anchor of the sweep, the same of another part, and a part of its own."""
    own = tmp_path_factory.mktemp("anchors")
    document = json.loads(json.dumps(document_of([FitSource(find_bundle([SAMPLES], "fpm_sweep"))])))
    keep(document, own, "toy")
    document["meta"]["gpu_arch"] = "h100-sxm"
    del document["built_digest"]  # written by hand from here on
    keep(document, own, "other-part")
    (own / "presets" / "parts").mkdir(parents=True)
    (own / "presets" / "parts" / "h100-double.toml").write_text(PRESET)
    like = find_bundle([SAMPLES], "ample8")
    trace = stored_trace([SAMPLES], like.identity.value("trace", "digest"))
    both = [SAMPLES, own]
    for slug, changes in (
        ("by-anchor", {"timing": "anchor", "anchor": "toy"}),
        ("by-formula", {"timing": "analytic", "part": "h100-double", "model_preset": "qwen3-0.6b"}),
    ):
        values = knobs.resolve(changes | {"warmup_s": 1.0, "duration_s": 4.0}, knobs_from_run(like))
        model = models.model_of(like, both, (), values)
        replay(trace, values, model, store=own, presets=preset_folders(both), slug=slug, like=like)
    return os.pathsep.join([str(SAMPLES), str(own)])


def tables(app, column: str) -> list:
    return [one.value for one in app.dataframe if column in one.value.columns]


def made(stores: str, slug: str) -> str:
    return run_id(Path(stores.split(os.pathsep)[1]), slug)


def test_sources_stand_beside_each_other_on_what_all_of_them_cover(opened: Open, stores: str) -> None:
    measured, predicted = run_id(SAMPLES, "ample8"), run_id(SAMPLES, "ample8-predicted")
    app = opened(stores, "timing", m=measured, r=predicted, tim_with=["anchor:toy", "anchor:other-part"])
    assert not app.exception
    (error,) = app.error
    assert "Another GPU part: h100-sxm in the anchor, amd epyc in the target" in plain(error.value)
    (errors,) = tables(app, "left_out")
    assert set(errors["source"]) == {"replay: ample8-predicted", "anchor:toy"}  # the refused one is not drawn
    own = errors[errors["source"] == "replay: ample8-predicted"].set_index("pass_class")
    other = errors[errors["source"] == "anchor:toy"].set_index("pass_class")
    assert own["passes"].tolist() == other["passes"].tolist()
    # the median by hand, from the recorded passes and the model in the record
    bundle, config = find_bundle([SAMPLES], measured), find_bundle([SAMPLES], predicted).lineage
    timing = build_timing(knobs.resolve(config["config"]), config["timing"]["model"])
    names = ["phase", "num_prefill_requests", "num_decode_requests", "sum_decode_kv_tokens", "duration_ns"]
    table = bundle.table("passes", names)
    assert table is not None
    rows = [
        row
        for row in table.to_pylist()
        if row["phase"] == "profile" and not row["num_prefill_requests"] and row["num_decode_requests"]
    ]
    off = [
        abs(timing.pass_ns(0, 0, 0, row["num_decode_requests"], row["sum_decode_kv_tokens"]) / row["duration_ns"] - 1)
        for row in rows
    ]
    left = int(other.loc["decode_only", "left_out"])
    assert own.loc["decode_only", "left_out"] == 0
    assert own.loc["decode_only", "passes"] + left == len(rows)
    assert own.loc["decode_only", "median"] == pytest.approx(np.median(off), abs=0.003)  # of those left out as well
    assert "Left out: replay: ample8-predicted does not cover" in plain(words(app))
    names_of = {trace.get("name") for chart in charts(app) for trace in chart["data"]}
    assert {"measured p50", "replay: ample8-predicted", "anchor:toy", "mean residual"} <= names_of


def test_hold_out_errors_are_those_of_the_record(opened: Open, stores: str) -> None:
    predicted = run_id(SAMPLES, "ample8-predicted")
    app = opened(stores, "timing", m=run_id(SAMPLES, "ample8"), r=predicted)
    model = find_bundle([SAMPLES], predicted).lineage["timing"]["model"]
    held = model["holdout"][model["composition"]]
    (by_class,) = tables(app, "median_ape")
    assert by_class.set_index("class")["wape"].to_dict() == {
        **{name: error["wape"] for name, error in held["by_class"].items()},
        "all": held["all"]["wape"],
    }
    maps = [trace for chart in charts(app) for trace in chart["data"] if trace["type"] == "heatmap"]
    assert sum(int(n or 0) for trace in maps for row in trace["text"] for n in row) == held["all"]["passes"]


def test_anchors_say_whether_they_apply(opened: Open, stores: str) -> None:
    app = opened(stores, "timing", m=run_id(SAMPLES, "ample8"), tim_anchor="other-part")
    assert not app.exception
    (kept,) = tables(app, "confidence")
    kept = kept.set_index("name")
    assert kept["decode"].to_dict() == {"toy": "applies", "other-part": "refused"}
    assert list(kept.index) == ["toy", "other-part"]  # nearest first
    assert "GPU part" in kept.loc["other-part", "why"]
    (axes,) = tables(app, "rule")
    assert axes.iloc[0].to_dict() == {
        "axis": "GPU part",
        "state": "differs",
        "anchor": "h100-sxm",
        "target": "amd epyc",
        "rule": "a part is never assumed",
    }


def test_no_effect_is_claimed_with_a_source_of_another_regime(opened: Open, stores: str) -> None:
    """What a GPU's formula leaves unexplained of passes on a processor is no effect of uneven lengths."""
    app = opened(stores, "timing", m=run_id(SAMPLES, "ample8"), r=made(stores, "by-formula"))
    assert not app.exception
    text = plain(words(app))
    assert "is of another regime than the run (model" in text
    assert "GPU part" in text
    assert "alpha +" not in text
    assert "was fitted on no passes, so none were held out" in text


def test_an_anchor_that_was_made_of_passes_is_not_said_to_rest_on_none(opened: Open, stores: str) -> None:
    app = opened(stores, "timing", m=run_id(SAMPLES, "ample8"), r=made(stores, "by-anchor"))
    assert f"rests on passes of {run_id(SAMPLES, 'fpm_sweep')}, and none of them were held out" in plain(words(app))


def test_identity_says_that_a_formula_was_not_measured(opened: Open, stores: str) -> None:
    app = opened(stores, "identity", m=run_id(SAMPLES, "ample8"), r=made(stores, "by-formula"), ack="true")
    assert not app.exception
    assert "the formula is used as it is, and nothing was measured" in words(app)
    assert "used as it was measured" not in words(app)


def test_a_sweep_can_be_what_sources_are_held_against(opened: Open, stores: str) -> None:
    sweep = run_id(SAMPLES, "fpm_sweep")
    app = opened(stores, "timing", m=run_id(SAMPLES, "ample8"), tim_run=sweep, tim_with="anchor:toy")
    assert not app.exception
    assert not app.error
    (errors,) = tables(app, "left_out")
    anchor = errors[errors["source"] == "anchor:toy"]  # the model of the replay was fitted on all of these passes
    assert errors[errors["source"] != "anchor:toy"]["left_out"].sum() == 0
    assert anchor["passes"].sum() + anchor["left_out"].sum() == find_bundle([SAMPLES], sweep).rows("passes")


def test_an_analytic_source_needs_a_model(opened: Open, stores: str) -> None:
    app = opened(stores, "timing", m=run_id(SAMPLES, "ample8"), tim_with="analytic:h100-double")
    assert "needs a model" in plain(app.error[0].value)
    app.selectbox(key="tim_model").set_value("qwen3-0.6b").run()
    assert not app.error
    (errors,) = tables(app, "left_out")
    formula = errors[errors["source"] == "h100-double x 1, qwen3-0.6b"]
    assert len(formula) == 3
    assert formula["left_out"].sum() == 0


def test_what_is_not_in_the_store_is_said(opened: Open, stores: str) -> None:
    app = opened(stores, "timing", m=run_id(SAMPLES, "ample8"), tim_with=["anchor:gone", "table:/etc/passwd"])
    assert not app.exception
    (error,) = app.error
    assert "no anchor 'gone'" in plain(error.value)  # and a path is no name of a table


def test_identity_has_the_regime_of_the_timing(opened: Open, stores: str) -> None:
    replays = [run_id(SAMPLES, "ample8-predicted"), made(stores, "by-anchor"), made(stores, "by-formula")]
    app = opened(stores, "identity", m=run_id(SAMPLES, "ample8"), r=replays, ack="true")
    assert not app.exception
    fitted, anchored, formula = tables(app, "rule")
    assert set(fitted["what"]) == {run_id(SAMPLES, "fpm_sweep"), f"{run_id(SAMPLES, 'ample8')} (warmup)"}
    assert "differs" not in set(fitted["state"])
    assert set(anchored["what"]) == {"anchor toy"}
    part = formula.set_index("axis").loc["GPU part"]
    assert (part["state"], part["target"]) == ("differs", "amd epyc")
    said = [table.set_index("part")["state"].to_dict() for table in tables(app, "sentence")]
    assert said[1] == {"decode": "accepted", "prefill": "accepted", "several prompts in one pass": "not measured"}
    levels = tables(app, "basis")[0]
    record = find_bundle([SAMPLES], "ample8-predicted").lineage["timing"]["levels"]
    assert levels["value"].tolist() == [f"{record[name]['factor']:.3f}" for name in record]


@pytest.mark.parametrize("cov", ["prefill only", "decode only", "mixed"])
def test_coverage_shows_measured_points_of_any_source(opened: Open, stores: str, cov: str) -> None:
    replays = [run_id(SAMPLES, "ample8-predicted"), made(stores, "by-anchor"), made(stores, "by-formula")]
    app = opened(stores, "coverage", m=run_id(SAMPLES, "ample8"), r=replays, ack="true", cov=cov)
    assert not app.exception
    assert not app.error
    said = plain(words(app))
    assert "Crosses: points of the model, fitted on" in said
    assert "Crosses: points of anchor toy" in said
    assert "The timing of this replay is analytic: it rests on no measured pass" in said
    assert {source for table in tables(app, "query_share") if "source" in table for source in table["source"]} == {
        "fpm",
        "anchor",
        "analytic",
    }


def test_a_what_if_of_another_regime_is_refused_before_it_runs(opened: Open, stores: str) -> None:
    base = run_id(SAMPLES, "ample8-predicted")
    app = opened(stores, "what_if", m=run_id(SAMPLES, "ample8"), base=base, k_timing="anchor", k_anchor="other-part")
    assert not app.exception
    assert "Anchor other-part does not apply" in plain(app.error[0].value)
    assert app.button(key="run-replay").disabled
    (axes,) = tables(app, "rule")
    assert axes["axis"][0] == "GPU part"
    app.selectbox(key="k_anchor").set_value("toy").run()
    assert not app.error
    assert not app.button(key="run-replay").disabled


def test_a_what_if_names_presets(opened: Open, stores: str) -> None:
    base = run_id(SAMPLES, "ample8-predicted")
    app = opened(stores, "what_if", m=run_id(SAMPLES, "ample8"), base=base, k_timing="analytic")
    assert "Knob part is not set" in plain(app.error[0].value)
    assert app.button(key="run-replay").disabled
    assert {"h100-sxm", "h100-double"} <= set(app.selectbox(key="k_part").options)
    assert app.selectbox(key="k_anchor").options == ["", "other-part", "toy"]
    app.selectbox(key="k_part").set_value("h100-double").run()
    app.selectbox(key="k_model_preset").set_value("qwen3-0.6b").run()
    assert not app.error
    assert app.button(key="undo-part").label.replace("\\", "") == "part none → h100-double"
    assert not app.button(key="run-replay").disabled


def test_a_what_if_of_a_replay_whose_preset_is_gone_takes_the_recorded_figures(opened: Open, stores: str) -> None:
    preset = Path(stores.split(os.pathsep)[1]) / "presets" / "parts" / "h100-double.toml"
    try:
        preset.write_text(PRESET.replace("6.7", "3.3"))
        app = opened(stores, "what_if", m=run_id(SAMPLES, "ample8"), base=made(stores, "by-formula"))
        assert "h100-double was changed (hbm_tb_s: 6.7 recorded, 3.3 now): the recorded figures are used" in plain(
            words(app)
        )
        preset.unlink()
        app = opened(stores, "what_if", m=run_id(SAMPLES, "ample8"), base=made(stores, "by-formula"))
        assert not app.exception
        assert not app.error
        assert "There is no preset of part h100-double any more" in plain(words(app))
    finally:
        preset.write_text(PRESET)


def test_a_what_if_is_held_against_the_memory_of_its_deployment() -> None:
    base = knobs_from_run(find_bundle([SAMPLES], "ample8"))
    named = {"timing": "analytic", "part": "h100-sxm", "model_preset": "qwen3-8b"}
    words, too_much = memory.ledger_words(knobs.resolve(named, base), [SAMPLES])
    assert "on 1 h100-sxm" in words.lower()
    assert words.endswith("knob kv_blocks asks for 4,095.")
    assert not too_much
    # 80 GB hold no 100,000 blocks of 32 tokens: 36 layers, 8 KV heads of 128, keys and values of 2 bytes.
    assert 100_000 * 32 * 36 * 8 * 128 * 2 * 2 > 80 * 2**30
    changes = named | {"kv_blocks": 100_001, "prefill_replicas": 1, "tp": 1}
    words, too_much = memory.ledger_words(knobs.resolve(changes, base), [SAMPLES])
    assert too_much
    assert "asks for 100,000, more than fits" in words
    assert words.endswith("A token takes 147,456 bytes of KV; knob kv_bytes_per_token says 6,144.")
    assert memory.ledger_words(knobs.resolve({}, base), [SAMPLES]) == ("", False)


def test_the_page_says_when_more_blocks_are_asked_for_than_fit(opened: Open, stores: str) -> None:
    changes = {"k_timing": "analytic", "k_part": "h100-sxm", "k_model_preset": "qwen3-8b"}
    base = run_id(SAMPLES, "ample8-predicted")
    app = opened(stores, "what_if", m=run_id(SAMPLES, "ample8"), base=base, **changes)
    assert not app.exception
    assert any("Memory ledger" in one.value for one in app.caption)
    app.number_input(key="k_kv_blocks").set_value(1_000_000).run()
    assert any("more than fits" in one.value for one in app.warning)
    assert not app.button(key="run-replay").disabled


def test_a_table_is_named_and_never_a_path(tmp_path: Path) -> None:
    base = find_bundle([SAMPLES], "ample8")
    file = tmp_path / "t.parquet"
    file.touch()
    values = knobs.resolve({"timing": "table", "table": str(file)}, knobs_from_run(base))
    assert "There is no table" in models.refusal(base, [SAMPLES, tmp_path], (), values)
