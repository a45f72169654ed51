"""The Request page says what a source-turn was on each side, and what is not known of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import synthetic
from conftest import Open, run_id
from test_pages import charts, plain, words


def tables(app) -> dict[str, object]:
    """The tables of the page by the name of their first column."""
    return {table.value.columns[0]: table.value for table in app.dataframe}


def test_a_turn_of_a_link_is_shown_on_both_sides(opened: Open, paired: Path) -> None:
    app = opened(paired, "request", turn="c1/3")
    assert not app.exception
    assert app.session_state["turn"] == "c1/3"
    timeline = charts(app)[0]
    rows = {trace["name"]: trace["y"] for trace in timeline["data"]}
    assert rows["prefill"] == ["measured", "replay"]
    # 1 + 3 * ((1 + 3) % 5) = 13 tokens, so 12 decode passes on each side
    assert rows["decode"] == ["measured"] * 12 + ["replay"] * 12
    boundaries = tables(app)["boundary"].set_index("boundary")
    # turn 3 % 3 = 0: first visible 60 ms after dispatch, a tenth later in the replay, a fiftieth in the repeat; the run
    # that is half later failed a check and says nothing of noise
    *times, against = boundaries.loc["first visible"].tolist()
    assert (times, against) == (pytest.approx([60.0, 66.0, 6.0, 1.2]), "outside")


def test_the_first_turn_is_the_one_that_differs_most(opened: Open, paired: Path) -> None:
    app = opened(paired, "request", turn_by="TTFT")
    listed = app.dataframe[-1].value
    assert app.session_state["turn"] == listed["turn"][0]
    # 90 ms after dispatch for every third turn, a tenth longer in the replay
    assert abs(listed["difference"][0] - 9.0) < 1e-6


def test_a_canceled_turn_is_said(opened: Open, paired: Path) -> None:
    app = opened(paired, "request", turn="c3/7")
    assert not app.exception
    assert plain(words(app)).count("it was canceled") == 2


def test_a_turn_that_one_side_never_sent_is_said(opened: Open, tmp_path: Path) -> None:
    synthetic.write(tmp_path, "measured", "ample8")
    synthetic.write(tmp_path, "replay", "ample8-replay", tables=("requests",), without=("r2-5",))
    app = opened(tmp_path, "request", turn="c2/5")
    assert not app.exception
    assert f"Replay {run_id(tmp_path, 'ample8-replay')} never sent this source-turn." in plain(words(app))
    assert charts(app)


def test_a_turn_that_nobody_sent_is_said(opened: Open, paired: Path) -> None:
    app = opened(paired, "request", turn="c9/99")
    assert not app.exception
    assert "None of these runs has a source-turn c9/99" in plain(words(app))


def test_what_was_not_recorded_is_said(opened: Open, paired: Path) -> None:
    thin = run_id(paired, "thin")
    app = opened(paired, "request", m=thin, r=run_id(paired, "ample8-replay"), turn="c0/1")
    assert not app.exception
    said = plain(words(app))
    assert f"Not recorded: run {thin} has no table passes." in said
    assert charts(app)
