"""The repeats page: the run against its repeats, a store without any, and the button that compares with one."""

from __future__ import annotations

from pathlib import Path

import pytest
import synthetic
from conftest import Open, run_id
from streamlit.testing.v1 import AppTest


def said(app: AppTest) -> str:
    kinds = ("markdown", "caption", "info", "warning", "error")
    return "\n".join(element.value for kind in kinds for element in app.get(kind)).replace("\\", "")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    synthetic.pair(tmp_path)
    synthetic.write(tmp_path, "measured", "again", speed=1.02)
    synthetic.write(tmp_path, "measured", "other", capacity__kv_blocks=256)
    return tmp_path


def test_run_repeat_and_replay_number_by_number(opened: Open, store: Path) -> None:
    app = opened(store, "repeats")
    assert not app.exception
    repeat, standing, near = (table.value for table in app.dataframe)
    ttft = repeat[repeat["metric"] == "TTFT"]
    assert ttft["gap"].tolist() == pytest.approx([2.0] * 5, abs=1e-6)  # every first token comes 2 % later
    assert ttft["difference"].tolist() == pytest.approx((ttft["repeat"] - ttft["run"]).tolist(), abs=0.11)
    placed = standing[standing["metric"] == "TTFT"]
    assert placed["gap"].tolist() == pytest.approx([10.0] * 5, abs=1e-6)
    assert placed["spread"].tolist() == pytest.approx([2.0] * 5, abs=1e-6)
    assert not set(placed["place"]) & {"inside both", "inside the repeats"}
    assert near["run"].tolist() == [run_id(store, "other")]
    assert near["fields"].tolist()[0].endswith("512 → 256")


def test_one_click_compares_with_the_repeat_everywhere(opened: Open, store: Path) -> None:
    again, replay = run_id(store, "again"), run_id(store, "ample8-replay")
    app = opened(store, "repeats")
    app.button(key=f"compare-{again}").click().run()
    assert app.session_state["r"] == [again, replay]
    assert app.button(key=f"compare-{again}").disabled
    assert not app.exception
    assert len(app.dataframe) == 3  # it keeps its table, and the replay its standing


def test_without_a_repeat_the_bootstrap_stands_alone(opened: Open, tmp_path: Path) -> None:
    synthetic.pair(tmp_path)
    app = opened(tmp_path, "repeats")
    assert "no repeat of this run" in said(app)
    standing = app.dataframe[0].value
    assert standing["spread"].isna().all()
    assert standing["low"].notna().any()
    assert "no other measured run" in said(app)


def test_a_repeat_that_failed_its_checks_is_flagged(opened: Open, paired: Path) -> None:
    words = f"{run_id(paired, 'broken')} has an equal identity but failed its checks (ledger): it counts as no repeat"
    assert words in said(opened(paired, "repeats"))


def test_a_replay_has_no_repeats(opened: Open, store: Path) -> None:
    app = opened(store, "repeats", m=run_id(store, "ample8-replay"), r=run_id(store, "ample8"))
    assert "A replay has no repeats" in said(app)
    assert not app.dataframe


def test_matched_pairs_do_not_place_a_replay(opened: Open, store: Path) -> None:
    app = opened(store, "repeats", pop="matched source-turns")
    assert not app.exception
    assert "whole populations only" in said(app)
    assert len(app.dataframe) == 2


def test_unlike_runs_have_no_gaps_until_that_is_acknowledged(opened: Open, store: Path) -> None:
    part = synthetic.write(store, "replay", "other-part", speed=0.8, hardware__part="H200")
    app = opened(store, "repeats", r=part)
    standing = app.dataframe[1].value
    assert set(standing["place"]) == {"not like for like"}
    assert standing["gap"].isna().all()
    assert opened(store, "repeats", r=part, ack="true").dataframe[1].value["gap"].notna().any()


def test_a_run_without_a_success_draws_no_empty_chart(opened: Open, tmp_path: Path) -> None:
    for slug, speed in (("ample8", 1.0), ("again", 1.02), ("third", 1.01)):
        synthetic.write(tmp_path, "measured", slug, speed=speed)
    app = opened(tmp_path, "repeats", phase="grace")
    assert not app.exception
    assert not app.error
    assert not [one for one in app.get("plotly_chart") if one.proto.alt.startswith("Difference from the run")]
    assert "There are no rows for this choice of runs, population and phase" in said(app)
    again, third = run_id(tmp_path, "again"), run_id(tmp_path, "third")
    assert "repeat and repeat" not in said(app)
    assert f"repeat {again}" in said(app)
    assert f"repeat {third}" in said(app)
