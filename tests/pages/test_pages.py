"""Every page in every state that a store can be in: never an exception, always a sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import synthetic
from conftest import Open, run_id
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Block

from dashboard.view import PAGES, REPLAYING

NO_CHARTS = ("runs", "what_if", "sweep", "sensitivity", "identity", "ledger", "ladder", "alignment", "source", "report")
WITH_CHARTS = [page for page in PAGES if page not in NO_CHARTS]
"""Pages that draw charts of any pair; the ladder's need its rungs (test_ladder_page.py), Source's need samples
over time (test_source_page.py), and Alignment opens on a rung without one (test_alignment_page.py)."""
COMPARING = [page for page in PAGES if page not in ("runs", *REPLAYING, "ledger", "tools", "source")]
SAMPLES = Path(__file__).parents[2] / "sample_runs"


def words(app: AppTest) -> str:
    """Everything that a page says."""
    kinds = ("markdown", "caption", "info", "warning", "error")
    return "\n".join(element.value for kind in kinds for element in app.get(kind))


def plain(text: str) -> str:
    """A text without its escapes, as a reader sees it."""
    return text.replace("\\", "")


def charts(app: AppTest) -> list[dict]:
    return [json.loads(chart.proto.spec) for chart in app.get("plotly_chart")]


@pytest.mark.parametrize("page", PAGES)
def test_an_empty_store_is_said(opened: Open, tmp_path: Path, page: str) -> None:
    app = opened(tmp_path, page)
    assert not app.exception
    assert "no run" in words(app).lower() or "empty" in words(app)


@pytest.mark.parametrize("page", PAGES)
def test_a_measured_run_alone(opened: Open, tmp_path: Path, page: str) -> None:
    synthetic.write(tmp_path, "measured", "ample8")
    app = opened(tmp_path, page)
    assert not app.exception
    assert not app.error


@pytest.mark.parametrize("page", PAGES)
def test_a_pair(opened: Open, paired: Path, page: str) -> None:
    app = opened(paired, page)
    assert not app.exception
    assert not app.error
    if page in WITH_CHARTS:
        assert charts(app)
    if page in COMPARING:
        said = words(app)
        assert run_id(paired, "ample8").replace("-", "\\-") in said
        assert "**blind prediction**" in said
        assert "population: every request, dispatched in profile" in said
        assert "of modelled time" in said


@pytest.mark.parametrize("page", PAGES)
def test_tables_that_were_not_recorded_are_said(opened: Open, paired: Path, page: str) -> None:
    app = opened(paired, page, m=run_id(paired, "thin"))
    assert not app.exception
    assert not app.error
    if page in ("passes", "cache_events"):
        assert "Not recorded" in words(app) or charts(app)


@pytest.mark.parametrize("page", PAGES)
def test_several_candidates(opened: Open, paired: Path, page: str) -> None:
    replays = [run_id(paired, slug) for slug in ("ample8-replay", "ample8_repeat", "broken", "thin")]
    app = opened(paired, page, r=replays)
    assert not app.exception
    assert not app.error


CALLED = {"measured": "reference", "replay": "replay"}
"""The side that is empty; the first side is no measured run where the pair is swapped for it."""


@pytest.mark.parametrize("empty", ["measured", "replay"])
@pytest.mark.parametrize("page", PAGES)
def test_a_side_without_requests_of_the_phase(opened: Open, paired: Path, page: str, empty: str) -> None:
    pair = [run_id(paired, "ample8"), run_id(paired, "cold")]
    measured, replay = pair if empty == "replay" else reversed(pair)
    app = opened(paired, page, m=measured, r=replay, phase="warm-up")
    assert not app.exception
    assert not app.error
    if page in ("percentiles", "passes"):
        assert f"Nothing of {CALLED[empty]} is in this chart" in words(app)


@pytest.mark.parametrize("curve", ["ECDF", "tail", "percentiles", "quantile-quantile"])
@pytest.mark.parametrize("empty", ["measured", "replay"])
def test_curves_draw_the_side_that_has_values(opened: Open, paired: Path, curve: str, empty: str) -> None:
    pair = [run_id(paired, "ample8"), run_id(paired, "cold")]
    measured, replay = pair if empty == "replay" else reversed(pair)
    app = opened(paired, "percentiles", m=measured, r=replay, phase="warm-up", curve=curve)
    assert not app.exception
    assert f"Nothing of {CALLED[empty]} is in this chart" in words(app)
    if curve == "quantile-quantile":
        assert "takes values on both sides" in words(app)
    else:
        (trace,) = charts(app)[0]["data"]
        assert trace["name"].endswith(": ample8")


def test_a_cohort_without_warm_up_lists_what_the_other_side_served(opened: Open, paired: Path) -> None:
    app = opened(paired, "cohort", m=run_id(paired, "ample8"), r=run_id(paired, "cold"), phase="warm-up")
    said = words(app)
    # four lanes begin at -400, -350, -300 and -250 ms: every turn before 0 is in the measured warm-up alone
    warm = sum(row["dispatched_ns"] < 0 for row in synthetic.rows(1.0)["requests"])
    assert f"of {warm} successes of {warm} attempted, {warm} remain" in said
    assert "Every source-turn" not in said
    assert len(app.dataframe[-1].value) == warm
    assert set(app.dataframe[-1].value["replay_phase"]) == {"profile"}


@pytest.mark.parametrize("page", PAGES)
def test_no_request_on_either_side(opened: Open, paired: Path, page: str) -> None:
    app = opened(paired, page, pop="child conversations")
    assert not app.exception
    assert not app.error


@pytest.mark.parametrize("page", COMPARING)
def test_a_link_to_an_absent_run_says_what_it_expected(opened: Open, paired: Path, page: str) -> None:
    app = opened(paired, page, m="ample8-0123456789ab")
    assert not app.exception
    (error,) = app.error
    assert "run ample8 with content digest 0123456789ab" in plain(error.value)
    assert run_id(paired, "ample8") in plain(error.value)
    assert not charts(app)


@pytest.mark.parametrize("page", COMPARING)
def test_an_absent_candidate_is_said_and_the_others_go_on(opened: Open, paired: Path, page: str) -> None:
    replays = ["ample8-0123456789ab", run_id(paired, "ample8-replay")]
    app = opened(paired, page, m=run_id(paired, "ample8"), r=replays)
    assert not app.exception
    (error,) = app.error
    assert "run ample8 with content digest 0123456789ab" in plain(error.value)
    assert "candidate 2" in words(app)  # the place in the bar decides on name and colour
    assert bool(charts(app)) == (page in WITH_CHARTS)
    assert app.session_state["r"] == replays


@pytest.mark.parametrize("page", COMPARING)
def test_the_only_candidate_is_absent(opened: Open, paired: Path, page: str) -> None:
    app = opened(paired, page, m=run_id(paired, "ample8"), r=["ample8-0123456789ab"])
    assert not app.exception
    (error,) = app.error
    assert "run ample8 with content digest 0123456789ab" in plain(error.value)
    assert app.session_state["r"] == ["ample8-0123456789ab"]


def test_an_altered_run_is_named_and_not_scored(opened: Open, tmp_path: Path, paired: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(paired, store)
    file = store / run_id(store, "ample8") / "requests.parquet"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    app = opened(store, "verdict", m=run_id(store, "ample8"), r=run_id(store, "ample8-replay"))
    assert not app.exception
    assert any("requests.parquet" in plain(error.value) for error in app.error)
    assert not charts(app)


def test_an_altered_candidate_is_named_and_the_others_go_on(opened: Open, tmp_path: Path, paired: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(paired, store)
    altered = run_id(store, "ample8-replay")
    file = store / altered / "requests.parquet"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    app = opened(store, "verdict", m=run_id(store, "ample8"), r=[altered, run_id(store, "ample8_repeat")])
    assert not app.exception
    (error,) = app.error
    assert "requests.parquet" in plain(error.value)
    assert "candidate 2" in words(app)
    assert charts(app)


def test_a_failed_run_stays_visible(opened: Open, paired: Path) -> None:
    app = opened(paired, "runs")
    table = app.dataframe[0].value
    assert len(table) == 7
    assert list(table[table["run"].str.startswith("broken")]["light"]) == ["▲ failed"]


def test_a_malformed_run_stays_visible(opened: Open, paired: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(paired, store)
    (store / run_id(store, "broken") / "run.json").write_text("{")
    table = opened(store, "runs").dataframe[0].value
    assert "malformed" in " ".join(table["light"])


def numbers(app: AppTest) -> pd.DataFrame:
    """The table of numbers, which stands below the parts of a gap once gaps are shown."""
    return next(one.value for one in app.dataframe if "gap" in one.value)


def test_unlike_runs_have_no_gaps_until_that_is_acknowledged(opened: Open, paired: Path) -> None:
    other = run_id(paired, "other-part")
    app = opened(paired, "verdict", r=other)
    assert "Not like for like" in words(app)
    assert "not like for like" in set(app.dataframe[0].value["state"])
    assert app.dataframe[0].value["gap"].isna().all()
    assert not charts(app)
    app.checkbox(key="ack").check().run()
    assert numbers(app)["gap"].notna().any()
    assert "**not like for like**" not in words(app)
    app = opened(paired, "verdict", r=other, ack="true")
    assert numbers(app)["gap"].notna().any()


def test_an_acknowledgement_is_about_one_pair(opened: Open, paired: Path) -> None:
    app = opened(paired, "verdict", r=run_id(paired, "other-part"), ack="true")
    app.button(key="repeat").click().run()
    assert app.checkbox(key="ack").value is False


def test_a_link_restores_shared_and_own_controls(opened: Open, paired: Path) -> None:
    query = {"m": run_id(paired, "ample8"), "r": run_id(paired, "ample8_repeat"), "pop": "matched source-turns"}
    query |= {"est": "nearest rank", "phase": "all phases", "metric": "TPOT", "curve": "tail", "pct_x": "linear"}
    app = opened(paired, "percentiles", **query)
    assert app.session_state["pop"] == "matched"
    assert app.session_state["est"] == "nearest_rank"
    assert app.session_state["metric"] == "tpot"
    assert charts(app)[0]["layout"]["xaxis"]["title"]["text"] == "TPOT, ms"
    assert "**repeat of one experiment**" in words(app)


def test_a_link_in_other_words_is_understood(opened: Open, paired: Path) -> None:
    app = opened(paired, "verdict", pop="matched", win="observed_span")
    assert (app.session_state["pop"], app.session_state["win"]) == ("matched", "observed_span")
    told = (app.query_params["pop"], app.query_params["win"])
    assert told == ("matched source-turns", "observed span")  # what a reload reads


def test_what_a_link_cannot_mean_is_said_until_the_view_changes(opened: Open, paired: Path) -> None:
    app = opened(paired, "verdict", phase="yesterday", colour="red", job="0123")
    assert "phase=yesterday" in plain(app.warning[0].value)
    assert "colour" in plain(app.warning[0].value)
    assert "job" not in plain(app.warning[0].value)
    assert "colour" in plain(app.run().warning[0].value)
    assert not app.selectbox(key="est").set_value("nearest_rank").run().warning


def test_a_newer_link_is_refused_with_a_way_on(opened: Open, paired: Path) -> None:
    app = opened(paired, "verdict", v="9")
    assert "version 9" in plain(app.error[0].value)
    (link,) = app.get("page_link")
    assert link.proto.label == "Open the dashboard with its defaults"


def test_a_link_of_any_length_fits_the_screen(opened: Open, paired: Path) -> None:
    app = opened(paired, "verdict", m="x" * 10_000)
    said = [*app.error, *app.warning]
    assert said
    assert max(len(box.value) for box in said) < 400
    assert "(10,000 characters)" in plain(app.error[0].value)


def test_swap_and_repeat(opened: Open, paired: Path) -> None:
    measured, replay = run_id(paired, "ample8"), run_id(paired, "ample8-replay")
    app = opened(paired, "verdict")
    assert (app.session_state["m"], app.session_state["r"]) == (measured, [replay])
    app.button(key="repeat").click().run()
    assert app.session_state["r"] == [replay, run_id(paired, "ample8_repeat")]
    app.button(key="swap").click().run()
    assert (app.session_state["m"], app.session_state["r"][0]) == (replay, measured)
    assert not app.exception
    words = " ".join(markdown.value for markdown in app.markdown)
    assert "reference: a replay" in words
    assert "compared with it: a recording" in words


def test_a_run_against_itself_is_said_to_show_nothing(opened: Open, paired: Path) -> None:
    measured = run_id(paired, "ample8")
    app = opened(paired, "verdict", m=measured, r=measured)
    assert f"{measured} stands on both sides" in plain(app.warning[0].value)
    assert not app.exception
    assert "blind prediction" not in " ".join(markdown.value for markdown in app.markdown)


@pytest.mark.parametrize("page", ["verdict", "what_if"])
def test_a_link_to_a_finished_job_adds_its_run(opened: Open, paired: Path, tmp_path: Path, page: str) -> None:
    store = tmp_path / "store"
    shutil.copytree(paired, store)
    folder = store / ".jobs" / "0123456789abcdef"
    folder.mkdir(parents=True)
    made = run_id(store, "other-part")
    spec = {"do": "replay", "title": "made up"}
    (folder / "spec.json").write_text(json.dumps({"spec": spec, "store": str(store), "created_s": 0}))
    (folder / "result.json").write_text(json.dumps({"run_id": made}))
    app = opened(store, page, job="0123456789abcdef", r=run_id(store, "ample8-replay"))
    assert app.session_state["r"] == [run_id(store, "ample8-replay"), made]
    assert not app.exception


def test_a_run_that_takes_the_place_of_another_says_so(opened: Open, paired: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(paired, store)
    folder = store / ".jobs" / "0123456789abcdef"
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(
        json.dumps({"spec": {"do": "replay", "title": "made up"}, "store": str(store), "created_s": 0})
    )
    (folder / "result.json").write_text(json.dumps({"run_id": run_id(store, "other-part")}))
    full = [run_id(store, slug) for slug in ("ample8-replay", "ample8_repeat", "broken", "thin")]
    app = opened(store, "verdict", job="0123456789abcdef", r=full)
    assert app.session_state["r"] == [*full[:3], run_id(store, "other-part")]
    (said,) = [one.value.replace("\\", "") for one in app.toast]
    assert said == f"made up joined the pair as a candidate in the place of {full[3]}: there is room for 4."


def test_gates_are_judged_and_a_bad_one_explains_itself(opened: Open, paired: Path) -> None:
    app = opened(paired, "verdict", gates="ttft.mean<=5% e2e.mean<=50%")
    assert "1 of 2 gates hold" in words(app)
    assert "expected metric.statistic" in opened(paired, "verdict", gates="fast").error[0].value.replace("\\", "")


def test_a_cell_of_a_link_shows_its_passes(opened: Open, paired: Path) -> None:
    app = opened(paired, "passes", cls="decode only", cell="17.1")
    assert "Passes in the cell" in words(app)


def test_every_chart_has_a_name_and_every_axis_a_unit(opened: Open, paired: Path) -> None:
    for page in WITH_CHARTS:
        app = opened(paired, page)
        for chart in app.get("plotly_chart"):
            assert run_id(paired, "ample8") in chart.proto.alt or "replay" in chart.proto.alt, page
            assert len(chart.proto.spec) < 300_000, page


def test_every_column_that_a_table_names_is_there(opened: Open, paired: Path) -> None:
    for page in COMPARING:
        for table in opened(paired, page).dataframe:
            named = json.loads(table.proto.columns)
            held = set(table.value.columns)
            shown = set(table.proto.column_order) or set(named) - {"_index"}
            assert shown <= held, (page, shown - held)


HOSTILE = "[x](http://evil.example) <b>www.evil.example</b> a@evil.example\n\n# **head** `code` &lt; $x$ :red[y]"


@pytest.mark.parametrize("page", PAGES)
def test_a_title_is_neither_link_nor_markup(opened: Open, tmp_path: Path, page: str) -> None:
    synthetic.write(tmp_path, "measured", "ample8", title=HOSTILE)
    synthetic.write(tmp_path, "replay", "ample8-replay", speed=1.1, title=HOSTILE)
    app = opened(tmp_path, page)
    assert not app.exception
    assert "\\[x\\]\\(http\\:\u2060//evil\\.example\\)" in words(app)
    told = words(app).replace("](#chart-", "")  # links within the page, whose titles are ours
    for sign in ("](", "http://", "www.", "<b>", "\n# ", "**head**", ":red["):
        assert sign not in told, sign
    for chart in charts(app):
        for trace in chart["data"]:
            assert "<b>" not in trace.get("name", "")


def test_labels_hold_no_markup(opened: Open, paired: Path) -> None:
    app = opened(paired, "what_if", base=run_id(paired, "ample8"))
    labels = [one.label for kind in ("number_input", "selectbox", "checkbox", "text_input") for one in app.get(kind)]
    assert "lanes, now 4" in labels
    assert not [label for label in labels if "[" in label]


def test_knobs_of_a_link_are_changes(opened: Open, paired: Path) -> None:
    app = opened(paired, "what_if", base=run_id(paired, "ample8"), k_lanes="2", k_kv_blocks="128")
    assert not app.exception
    changed = [plain(one.label) for one in app.button if (one.key or "").startswith("undo-")]
    assert changed == ["lanes 4 → 2", "kv_blocks 512 → 128"]
    assert app.number_input(key="k_lanes").label == "lanes, changed from 4"
    assert app.number_input(key="k_kv_blocks").label == "kv_blocks, changed from 512"
    app.button(key="undo-lanes").click().run()
    assert app.number_input(key="k_lanes").value == 4
    assert [one.key for one in app.button if (one.key or "").startswith("undo-")] == ["undo-kv_blocks"]
    app.button(key="reset-capacity").click().run()
    assert "Nothing is changed" in words(app)


def test_the_host_model_is_a_what_if(opened: Open, paired: Path) -> None:
    app = opened(paired, "what_if", base=run_id(paired, "ample8"), k_host_model="given", k_host_prompt_token_us="20")
    assert not app.exception
    assert app.selectbox(key="k_host_model").options == ["off", "fitted", "given"]
    assert plain(app.button(key="undo-host_model").label) == "host_model off → given"
    assert plain(app.button(key="undo-host_prompt_token_us").label) == "host_prompt_token_us 0.0 → 20.0"
    app.selectbox(key="k_host_model").set_value("off").run()
    assert "host_prompt_token_us=20 has no effect" in plain(app.error[0].value)


def test_a_run_without_a_model_needs_passes_to_fit_on(opened: Open, paired: Path) -> None:
    app = opened(paired, "what_if", base=run_id(paired, "ample8-replay"))
    assert "holds no timing model" in words(app)
    assert app.button(key="run-replay").disabled
    app.selectbox(key="base").set_value(run_id(paired, "ample8")).run()
    assert app.session_state["fit"] == [f"{run_id(paired, 'ample8')}:warmup"]
    assert not app.button(key="run-replay").disabled


def test_knobs_that_contradict_each_other_are_said_before_anything_runs(opened: Open, paired: Path) -> None:
    app = opened(paired, "what_if", base=run_id(paired, "ample8"), k_max_num_batched_tokens="8")
    assert "max_num_batched_tokens=8" in plain(app.error[0].value)


def test_a_refused_change_keeps_its_box_and_opens_its_groups(opened: Open, paired: Path) -> None:
    changes = {"k_prefill_replicas": "1", "k_host_kv_blocks": "100"}
    app = opened(paired, "what_if", base=run_id(paired, "ample8"), **changes)
    box = _smallest(app.main, lambda block: block.get("error") and len(block.get("button")) >= 2)
    assert "no rule for that is known here" in box.get("error")[0].value
    labels = [plain(one.label) for one in box.get("button")]
    assert labels == ["host_kv_blocks 0 → 100", "prefill_replicas 0 → 1", "Reset", "Run the replay"]
    assert not box.get("number_input")
    assert app.button(key="run-replay").disabled
    is_open = {one.label.partition(":")[0]: one.proto.expanded for one in app.expander}
    assert is_open["Disaggregation"]
    assert not is_open["Speculation"]
    assert "Disaggregation: prompts in one pool of engines, decodes in another (1 changed)" in [
        one.label for one in app.expander
    ]
    next(one for one in app.button if one.label == "Reset").click().run()
    assert not app.error


def _smallest(block: Block, holds: Callable[[Block], object]) -> Block:
    """The innermost container of which something holds."""
    inner = [one for one in block.children.values() if isinstance(one, Block) and holds(one)]
    return _smallest(inner[0], holds) if inner else block


@pytest.mark.parametrize("page", [name for name in PAGES if name not in ("runs", *REPLAYING, "ledger")])
def test_a_sweep_on_either_side_is_answered_in_words(opened: Open, page: str) -> None:
    app = opened(SAMPLES, page, m=run_id(SAMPLES, "ample8"), r=run_id(SAMPLES, "fpm_sweep"))
    assert not app.exception
    app = opened(SAMPLES, page, m=run_id(SAMPLES, "fpm_sweep"), r=run_id(SAMPLES, "ample8-predicted"))
    assert not app.exception
    told = words(app) + " ".join(box.value for box in (*app.info, *app.error))
    assert "sweep" in told or "ot recorded" in told
