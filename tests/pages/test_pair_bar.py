"""What one click in the pair bar does beyond choosing runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import streamlit as st
from conftest import PAGES, Open, run_id

from dashboard import pairs, widgets
from dashboard.store import Store
from dashboard.view import View


def test_kept_replays_stay_when_another_measured_run_is_chosen(opened: Open, paired: Path) -> None:
    kept = [run_id(paired, "other-part"), run_id(paired, "ample8-replay")]
    app = opened(paired, "cohort", r=kept)
    app.checkbox(key="_keep").check().run()
    app.selectbox(key="m").set_value(run_id(paired, "ample8_repeat")).run()
    assert app.session_state["r"] == kept
    app.checkbox(key="_keep").uncheck().run()
    app.selectbox(key="m").set_value(run_id(paired, "ample8")).run()
    assert len(app.session_state["r"]) == 1  # it brings its own
    assert not app.exception


def test_a_kept_run_does_not_stand_against_itself(opened: Open, paired: Path) -> None:
    repeat, replay = run_id(paired, "ample8_repeat"), run_id(paired, "ample8-replay")
    app = opened(paired, "cohort", r=[repeat, replay])
    app.checkbox(key="_keep").check().run()
    app.selectbox(key="m").set_value(repeat).run()
    assert app.session_state["r"] == [replay]


def test_without_a_replay_there_is_nothing_to_keep_or_swap(opened: Open, paired: Path) -> None:
    app = opened(paired, "cohort", r=[""])
    assert app.checkbox(key="_keep").disabled
    assert app.button(key="swap").disabled


def test_the_pinned_baseline_stays_on_every_page(opened: Open, paired: Path) -> None:
    own = run_id(paired, "ample8")
    app = opened(paired, "cohort", r=[run_id(paired, "ample8-replay")], pin="true")
    assert app.selectbox(key="m").disabled
    assert app.button(key="swap").disabled
    app.switch_page(str(PAGES / "runs.py")).run()
    assert app.checkbox(key="pin").value  # it holds on every page
    assert app.session_state["m"] == own
    assert not app.exception


def test_beside_a_pinned_baseline_a_chosen_run_is_one_more_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"m": "own", "r": ["first"], "pin": True}
    monkeypatch.setattr(st, "session_state", state)
    for chosen in ("other", "own", "third", "fourth", "fifth"):
        widgets.choose_measured(chosen)
    assert state["m"] == "own"
    assert state["r"] == ["first", "other", "third", "fifth"]  # the last place goes to the last chosen


def test_the_pin_is_seen_in_the_bar_and_in_every_strip(opened: Open, paired: Path) -> None:
    app = opened(paired, "cohort", pin="true")
    said = [one.value for one in app.markdown]
    assert sum("pinned baseline" in words for words in said) > 1
    assert all("**pinned baseline**" in words for words in said if "identity: " in words)
    app.checkbox(key="pin").uncheck().run()
    assert not any("pinned baseline" in one.value for one in app.markdown)


def test_the_repeat_is_one_click_away_on_every_page(opened: Open, paired: Path) -> None:
    for page in ("cohort", "identity"):
        app = opened(paired, page)
        app.button(key="repeat").click().run()
        assert app.session_state["r"][-1] == run_id(paired, "ample8_repeat")
        assert app.button(key="repeat").disabled
        assert not app.exception


def test_an_absent_run_is_named_with_the_way_to_get_it(opened: Open, paired: Path) -> None:
    gone = "tight8-0123456789ab"
    app = opened(paired, "cohort", m=run_id(paired, "ample8"), r=[run_id(paired, "ample8-replay"), gone])
    (error,) = app.error
    said = error.value.replace("\\", "")
    assert "candidate 2" in said
    assert "run tight8 with content digest 0123456789ab" in said
    assert f"`gapscope export {gone} --format parquet`" in said
    assert f"`gapscope import {gone}-parquet`" in said


@pytest.mark.parametrize(
    ("page", "name", "label"), [("what_if", "base", "Start from"), ("timing", "tim_run", "Measured passes of")]
)
def test_an_absent_run_outside_the_pair_bar_is_named_once(paired: Path, page: str, name: str, label: str) -> None:
    gone = "tight8-0123456789ab"
    assert pairs.absent_elsewhere(View(page, {name: run_id(paired, "ample8")}), Store([paired]).catalogue()) == []
    (said,) = pairs.absent_elsewhere(View(page, {"m": gone, name: gone}), Store([paired]).catalogue())
    assert said.startswith(f"{label}: This link expects run tight8 with content digest 0123456789ab")
