"""Several candidates on every page, outcomes above it, phases behind charts, errors by length, limits, runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import synthetic
from conftest import Open, run_id
from streamlit.testing.v1 import AppTest

from dashboard.catalogue import RunEntry
from dashboard.charts.records import runs
from engine.bundle import Check


def said(app: AppTest) -> str:
    kinds = ("markdown", "caption", "info", "warning", "error")
    return "\n".join(element.value for kind in kinds for element in app.get(kind)).replace("\\", "")


def figures(app: AppTest) -> list[dict]:
    return [json.loads(chart.proto.spec) for chart in app.get("plotly_chart")]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording, a repeat 2 % slower, and replays that are 10 and 30 % slower."""
    folder = tmp_path_factory.mktemp("candidates")
    synthetic.pair(folder)
    synthetic.write(folder, "measured", "again", speed=1.02)
    synthetic.write(folder, "replay", "far", speed=1.3)
    return folder


@pytest.fixture(scope="module")
def repeated(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with three repeats, which are noise by themselves."""
    folder = tmp_path_factory.mktemp("repeated") / "runs"
    shutil.copytree(store, folder)
    for name, speed in (("third", 1.01), ("fourth", 0.99)):
        synthetic.write(folder, "measured", name, speed=speed)
    return folder


@pytest.fixture
def both(store: Path) -> list[str]:
    return [run_id(store, "ample8-replay"), run_id(store, "far")]


def test_the_verdict_has_every_candidate_in_one_table(opened: Open, repeated: Path, both: list[str]) -> None:
    app = opened(repeated, "verdict", r=both)
    assert not app.exception
    numbers = next(frame.value for frame in app.dataframe if "candidate_2_gap" in frame.value.columns)
    ttft = numbers[numbers["metric"] == "TTFT"]
    assert ttft["candidate_1_gap"].tolist() == pytest.approx([10.0] * 5, abs=1e-6)
    assert ttft["candidate_2_gap"].tolist()[1:] == pytest.approx([30.0] * 4, abs=1e-6)  # the mean is of other turns
    assert set(ttft["nearest"]) == {"replay: ample8-replay"}
    assert set(ttft["better"]) == {"lower"}
    assert (ttft["candidate_1_n"] > 0).all()
    ratio = ttft["candidate_2_unrounded"] / ttft["measured_unrounded"]
    assert ratio.tolist()[1:] == pytest.approx([1.3] * 4, abs=1e-8)
    assert "replay: ample8-replay is nearer in" in said(app)
    assert "of 17 headline numbers: TTFT mean" in said(app)


def test_a_candidate_is_one_cell_on_the_page_and_whole_behind_it(opened: Open, repeated: Path, both: list[str]) -> None:
    app = opened(repeated, "verdict", r=both)
    (table,) = [one for one in app.dataframe if "candidate_1_cell" in one.proto.column_order]
    order = list(table.proto.column_order)
    assert order == ["number", "unit", "measured", "candidate_1_cell", "candidate_2_cell", "closest"]
    rows = table.value.set_index("number")
    p50 = rows.loc["TTFT p50"]
    assert p50["candidate_1_cell"] == f"{1.1 * p50['measured_unrounded']:,.1f} · +10.0 % worse"
    assert p50["candidate_2_cell"] == f"{1.3 * p50['measured_unrounded']:,.1f} · +30.0 % worse"
    assert p50["closest"] == "replay"


def test_four_candidates_fit_beside_each_other_at_1280_pixels(opened: Open, repeated: Path, both: list[str]) -> None:
    four = [*both, run_id(repeated, "again"), run_id(repeated, "third")]
    app = opened(repeated, "verdict", r=four, gates="ttft.mean<=20%")
    numbers, gates = (
        next(one for one in app.dataframe if column in one.proto.column_order)
        for column in ("candidate_4_cell", "cell_3")
    )
    named = json.loads(numbers.proto.columns)
    assert (
        sum(named[name]["width"] for name in numbers.proto.column_order) <= 930
    )  # beside a sidebar of 264, as a browser shows it first
    cells = gates.value.iloc[0]
    assert cells["cell_0"].startswith("pass: ")
    assert cells["cell_1"].startswith("fail: ")
    assert cells["measured_1"] == cells["measured_0"]  # the figures stand behind the cells


def test_a_repeat_competes_with_nobody(opened: Open, store: Path, both: list[str]) -> None:
    app = opened(store, "verdict", r=[both[0], run_id(store, "again")])
    assert "Which candidate is nearer" not in said(app)
    assert "No repeat of the measured run" not in said(app)
    numbers = next(frame.value for frame in app.dataframe if "candidate_2_state" in frame.value.columns)
    assert set(numbers["candidate_2_state"]) <= {"a repeat: it is the noise", "same", "not comparable"}
    assert "candidate 2: a recording" in said(app)
    ratio = numbers[numbers["metric"] == "Token hit ratio"]
    assert set(ratio["unit"]) <= {"%"}


def test_the_parts_of_a_gap_are_those_of_the_chosen_candidate(opened: Open, store: Path, both: list[str]) -> None:
    app = opened(store, "verdict", r=both, split_of="candidate 2")
    assert "is made of: measured and candidate 2, ms" in said(app)
    assert "is made of: measured and replay, ms" in said(opened(store, "verdict", r=both))


@pytest.mark.parametrize("page", ["cohort", "cache_events"])
def test_tables_of_numbers_hold_all_candidates(opened: Open, store: Path, both: list[str], page: str) -> None:
    app = opened(store, page, r=both)
    assert not app.exception
    assert any({"candidate_1_gap", "candidate_2_gap"} <= set(frame.value.columns) for frame in app.dataframe)


def test_gates_are_judged_for_every_candidate(opened: Open, store: Path, both: list[str]) -> None:
    app = opened(store, "verdict", r=both, gates="ttft.mean<=20%")
    assert "1 of 1 gate holds for replay; 0 of 1 gate holds for candidate 2" in said(app)


def test_the_outcome_bar_stands_on_every_page(opened: Open, store: Path) -> None:
    for page in ("verdict", "runs"):
        bar = next(one.proto.body for one in opened(store, page).get("html") if "attempted" in one.proto.body)
        # one of the 32 requests is canceled; those before 0 are warm-up
        profile = sum(row["dispatched_ns"] >= 0 for row in synthetic.rows(1.0)["requests"])
        assert f"{profile} attempted · {profile - 1} ok" in bar
        assert "▲ 1 canceled" in bar


def test_the_cohort_lists_what_did_not_succeed(opened: Open, store: Path) -> None:
    app = opened(store, "cohort")
    lost = next(frame.value for frame in app.dataframe if "outcome" in frame.value.columns)
    assert lost["turn"].tolist() == ["c3/7", "c3/7"]
    assert set(lost["outcome"]) == {"canceled"}


def test_phases_lie_behind_charts_over_time_alone(opened: Open, store: Path) -> None:
    layout = figures(opened(store, "cohort"))[0]["layout"]
    rects = [shape for shape in layout["shapes"] if shape["type"] == "rect"]
    bands = {(shape["x0"], shape["x1"]) for shape in rects}
    measured = json.loads((store / run_id(store, "ample8") / "run.json").read_text())["phases"]
    assert bands == {(phase["start_ns"] / 1e9, phase["end_ns"] / 1e9) for phase in measured}
    assert {shape["label"]["text"] for shape in rects} >= {"profile (chosen)", "warm-up"}
    by_turn = figures(opened(store, "cache_events"))[0]["layout"]
    assert {shape["xref"] for shape in by_turn["shapes"]} == {"x"}  # the second panel is by turn


def test_phases_that_lie_elsewhere_are_drawn_and_named(opened: Open, store: Path, tmp_path: Path) -> None:
    synthetic.write(tmp_path, "measured", "ample8")
    synthetic.write(tmp_path, "replay", "late", speed=1.5, start=-2_000 * synthetic.MS)
    app = opened(tmp_path, "cohort")
    own, other = (
        {one["name"]: (one["start_ns"] / 1e9, one["end_ns"] / 1e9) for one in phases}
        for slug in ("ample8", "late")
        for phases in [json.loads((tmp_path / run_id(tmp_path, slug) / "run.json").read_text())["phases"]]
    )
    assert own["warmup"] != other["warmup"]
    shapes = figures(app)[0]["layout"]["shapes"]
    edges = {shape["x0"] for shape in shapes if shape["type"] == "line"}
    ends = {edge for span in own.values() for edge in span}
    assert edges == {edge for span in other.values() for edge in span if all(abs(edge - one) > 1 for one in ends)}
    assert -2.0 in edges
    assert "Of the replay, as thin lines: warm-up -2.0 to 0.0 s" in said(app)


def test_a_phase_without_dispatches_is_empty_in_words(opened: Open, store: Path) -> None:
    for page in ("percentiles", "verdict", "passes", "request"):
        app = opened(store, page, phase="grace")
        assert not app.exception, page
        assert not app.error, page


def test_errors_by_length_and_the_turns_of_a_cell(opened: Open, store: Path) -> None:
    app = opened(store, "percentiles", r=run_id(store, "ample8-replay"), err_cell="2.4")
    assert not app.exception
    heat = next(f for f in figures(app) if any(t["type"] == "heatmap" for t in f["data"]))
    keys = next(t["customdata"] for t in heat["data"] if t["type"] == "scatter")
    assert "2.4" in keys
    cells = next(frame.value for frame in app.dataframe if "replay_output_tokens" in frame.value)
    assert len(cells) > 0
    assert cells["gap"].tolist() == pytest.approx([0.1] * len(cells), abs=1e-6)


def test_limits_are_part_of_the_link(opened: Open, store: Path, both: list[str]) -> None:
    app = opened(store, "percentiles", r=both, slo="ttft<=75ms")
    table = next(frame.value for frame in app.dataframe if "points" in frame.value.columns)
    assert table["side"].tolist() == ["replay", "candidate 2"]
    assert table["limit"].tolist() == ["ttft<=75ms"] * 2
    # TTFTs are 60, 75 and 90 ms; of the replays 10 and 30 % more
    rows = [row for row in synthetic.rows(1.0)["requests"] if row["phase"] == "profile" and row["status"] == "ok"]
    within = sum(row["first_visible_ns"] - row["dispatched_ns"] <= 75e6 for row in rows)
    assert table["measured"].tolist() == pytest.approx([within / len(rows)] * 2)
    assert (table["replay"] < table["measured"]).all()
    shapes = figures(app)[0]["layout"]["shapes"]
    assert [shape["x0"] for shape in shapes] == [75.0]
    (error,) = opened(store, "percentiles", slo="nonsense").error
    assert "expected a metric" in error.value


def test_the_history_says_what_keeps_others_out(opened: Open, store: Path, tmp_path: Path) -> None:
    synthetic.pair(tmp_path)
    synthetic.write(tmp_path, "measured", "other", capacity__kv_blocks=256)
    app = opened(tmp_path, "repeats")
    assert "kv blocks 1 (1 by it alone)" in said(app).lower()
    marks = [mark for figure in figures(opened(store, "repeats")) for mark in figure["data"][0].get("customdata", ())]
    assert marks == [f"{run_id(store, slug)}: too few others" for slug in ("ample8", "again")]


def test_runs_are_filtered_by_state_and_say_what_is_wrong(opened: Open, paired: Path) -> None:
    app = opened(paired, "runs", run_state=["failed"])
    listed = app.dataframe[0].value
    assert listed["run"].tolist() == [run_id(paired, "broken")]
    assert listed["problem"].tolist()[0].startswith("ledger")
    assert listed["wrong"].tolist()[0] == "ledger"  # a cell that is never cut; the sentence stands below
    assert "ledger: made up" in said(app)
    assert listed["as_measured"].tolist() == ["Measured"]
    assert opened(paired, "runs", run_hw=["H200"]).dataframe[0].value["run"].tolist() == [run_id(paired, "other-part")]
    assert "None of the" in said(opened(paired, "runs", find="no such run"))


def test_a_row_names_three_failed_checks_and_counts_the_others() -> None:
    def entry(*failed: str, problem: str = "", state: str = "ok") -> RunEntry:
        checks = tuple(Check(name, "fail", "made up") for name in failed)
        return RunEntry("x-1", "measured", "x", Path("x-1"), state, problem or None, failed=checks)  # type: ignore[arg-type]

    assert runs.briefly(entry()) is None
    assert runs.briefly(entry("a", "b", "c")) == "a, b, c"
    assert runs.briefly(entry("a", "b", "c", "d", "e")) == "a, b, c and 2 more"
    assert runs.briefly(entry(problem="Run x is altered: ...", state="altered")) == "its files are altered"
