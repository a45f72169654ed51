"""Saved views from the list of the Runs page: what is shown of each, and what becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import synthetic
from conftest import Open, run_id

from dashboard.saved import save
from dashboard.view import View, from_link


@pytest.fixture
def store(tmp_path: Path) -> Path:
    synthetic.pair(tmp_path)
    values = {"m": run_id(tmp_path, "ample8"), "r": [run_id(tmp_path, "ample8-replay")], "metric": "tpot"}
    save([tmp_path], View("percentiles", values).link(), "the *tail*", "9 % <b>low</b>")
    save([tmp_path], View("verdict", {"m": "gone-0123456789ab"}).link(), "elsewhere")
    return tmp_path


def test_a_saved_view_is_listed_with_page_runs_note_date_and_presence(opened: Open, store: Path) -> None:
    app = opened(store, "runs")
    app.session_state["saved-views"] = True
    app.run()
    assert not app.exception
    said = [one.value.replace("\\", "") for one in app.markdown]
    (tail,) = [words for words in said if "Percentiles" in words and "9 %" in words]
    assert run_id(store, "ample8-replay") in tail
    assert "all runs in the store" in tail
    assert "UTC" in tail
    assert any("not in the store: gone-0123456789ab" in words for words in said)
    links = [element.proto.url for element in app.get("link_button")]
    assert [from_link(link).page for link in links] == ["verdict", "percentiles"]  # the newest first


def test_an_empty_list_says_how_a_view_is_saved(opened: Open, paired: Path) -> None:
    app = opened(paired, "runs")
    app.session_state["saved-views"] = True
    app.run()
    assert any("open Link" in one.value for one in app.info)
