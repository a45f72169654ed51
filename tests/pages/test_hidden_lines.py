"""Runs that charts leave out: a choice of the bar, so that a link has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conftest import Open, run_id
from streamlit.testing.v1 import AppTest

from dashboard.charts import draw
from dashboard.charts.style import ROLES
from dashboard.frame import Side
from dashboard.store import Store


def figures(app: AppTest) -> list[dict[str, Any]]:
    return [json.loads(chart.proto.spec) for chart in app.get("plotly_chart")]


def drawn(figure: dict[str, Any], name: str) -> list[Any]:
    return [trace.get("visible", True) for trace in figure["data"] if trace.get("name", "").startswith(name)]


def test_a_hidden_run_is_in_no_chart_and_still_in_the_numbers(opened: Open, paired: Path) -> None:
    whole = opened(paired, "percentiles")
    app = opened(paired, "percentiles", hide="measured")
    assert not app.exception
    curves = [figure for figure in figures(app) if drawn(figure, "measured: ")]
    assert curves
    for figure in curves:
        assert set(drawn(figure, "measured: ")) == {"legendonly"}
        assert set(drawn(figure, "replay: ")) <= {True}
    assert any("Not drawn: measured" in one.value for one in app.caption)
    for before, after in zip(whole.dataframe, app.dataframe, strict=True):
        assert after.value.equals(before.value)
    app.multiselect(key="hide").set_value([]).run()
    assert not any("legendonly" in drawn(figure, "measured: ") for figure in figures(app))


def test_a_choice_of_a_place_that_is_empty_hides_nothing(opened: Open, paired: Path) -> None:
    app = opened(paired, "percentiles", hide="candidate 4")
    assert not app.exception
    assert not any("Not drawn" in one.value for one in app.caption)


def test_only_legends_of_runs_take_no_clicks(paired: Path) -> None:
    """What a click hides is in no link; names of parts, which no control hides, can be clicked away for a moment."""
    store = Store([paired])
    sides = [Side(ROLES[0], store.bundle(run_id(paired, "ample8")))]
    runs = {"data": [{"name": sides[0].name}], "layout": {"legend": {"x": 0}}}
    parts = {"data": [{"name": "queue"}, {"name": sides[0].name}], "layout": {"legend": {"x": 0}}}
    assert draw.shown_only(runs, sides, frozenset())["layout"]["legend"] == {
        "x": 0,
        "itemclick": False,
        "itemdoubleclick": False,
    }
    assert draw.shown_only(parts, sides, frozenset())["layout"]["legend"] == {"x": 0}
