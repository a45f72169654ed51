"""Every page with runs of load generators that lack what a recording has: no exception, and it is said."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import synthetic
import tool_runs
from conftest import Open, run_id
from streamlit.testing.v1 import AppTest
from test_pages import charts, words

from dashboard.view import PAGES


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("tools")
    synthetic.pair(store)
    for write in tool_runs.RUNS.values():
        write(store)
    return store


@pytest.mark.parametrize("slug", tool_runs.RUNS)
@pytest.mark.parametrize("page", PAGES)
def test_measured_by_a_tool(opened: Open, tools: Path, page: str, slug: str) -> None:
    app = opened(tools, page, m=run_id(tools, slug), r=run_id(tools, "ample8-replay"), ack="true")
    assert not app.exception
    assert not app.error
    assert len(words(app)) > 100


def plain(app: AppTest) -> str:
    return words(app).replace("\\", "")


def tables(app: AppTest, column: str) -> list[pd.DataFrame]:
    return [element.value for element in app.dataframe if column in element.value.columns]


@pytest.mark.parametrize(
    ("page", "slug", "said"),
    [
        ("cohort", "durations", "the tool keeps no times of the requests of run durations"),
        ("passes", "untimed", "the tool keeps no times of the passes of run untimed"),
        ("percentiles", "failed", "Nothing of measured is in this chart"),
        ("verdict", "failed", "TTFT, TPOT, E2E, Requests in flight (measured: empty sample)"),
        ("verdict", "warm", "TTFT, TPOT, E2E, Requests in flight (measured: empty sample)"),
        ("cache_events", "durations", "has no table kv_events"),
        ("verdict", "summary", "it is a summary without rows: choose a recording or a replay. What its files say is"),
        (
            "repeats",
            "summary",
            "has no requests, it is a summary without rows: choose a recording as the measured run.",
        ),
    ],
)
def test_what_is_missing_is_said(opened: Open, tools: Path, page: str, slug: str, said: str) -> None:
    app = opened(tools, page, m=run_id(tools, slug), r=run_id(tools, "ample8-replay"), ack="true")
    assert said in plain(app)


def test_a_request_without_times_has_its_durations(opened: Open, tools: Path) -> None:
    app = opened(tools, "request", m=run_id(tools, "durations"), r=run_id(tools, "ample8-replay"), turn="=r0")
    said = plain(app)
    assert "the tool keeps no times of this request, so it has no place in time or in a pass" in said
    assert "measured: 100 tokens in (unknown reused), 5 out, TTFT 50.0 ms, E2E 140.0 ms" in said
    assert "Not recorded: nobody counted the tokens of the chunks" in said


@pytest.mark.parametrize("page", ["cohort", "percentiles", "cache_events", "boundaries"])
def test_a_strip_names_the_definition_that_differs(opened: Open, tools: Path, page: str) -> None:
    app = opened(tools, page, m=run_id(tools, "ample8"), r=run_id(tools, "durations"), ack="true")
    said = plain(app)
    assert ":orange-badge[first token: role chunk, not content]" in said
    assert ":orange-badge[end of latency: any chunk, not content]" in said
    assert ":orange-badge[output tokens: asked for, not counted]" in said
    same = opened(tools, page, m=run_id(tools, "ample8"), r=run_id(tools, "ample8-replay"), ack="true")
    assert "orange-badge" not in words(same)


def test_quantiles_of_another_quantity_are_not_drawn_against_each_other(opened: Open, tools: Path) -> None:
    link = {"m": run_id(tools, "ample8"), "r": run_id(tools, "durations"), "ack": "true"}
    app = opened(tools, "percentiles", curve="quantile-quantile", **link)
    assert "Values of the run compared with it and of the reference run are shown, and not comparable: The " in plain(
        app
    )
    assert "no quantile is drawn against another" in plain(app)
    values = opened(tools, "percentiles", curve="ECDF", **link)
    assert [trace for trace in charts(values)[0]["data"] if str(trace.get("name", "")).endswith("durations")]
    table = tables(values, "gap")[0]
    assert set(table["state"]) == {"not comparable"}
    assert table["gap"].isna().all()
    assert table["replay"].notna().any()


def test_stages_of_another_quantity_have_values_and_no_difference(opened: Open, tools: Path) -> None:
    app = opened(tools, "boundaries", m=run_id(tools, "ample8"), r=run_id(tools, "durations"), ack="true")
    assert "In the mean, the run compared with it is not comparable. The " in plain(app)
    table = tables(app, "change_ms")[0]
    assert set(table["state"]) == {"not comparable"}
    assert table["change_ms"].isna().all()
    assert table["replay_ms"].notna().all()


def test_a_replay_of_another_quantity_has_no_place_among_repeats(opened: Open, tools: Path) -> None:
    app = opened(tools, "repeats", m=run_id(tools, "durations"), r=run_id(tools, "ample8-replay"), ack="true")
    table = tables(app, "place")[0]
    places = dict(zip(table["metric"] + " " + table["statistic"], table["place"], strict=True))
    assert places["TTFT mean"] == "not comparable"
    assert places["Requests fixed"] != "not comparable"


def test_turns_of_another_quantity_have_no_difference(opened: Open, tools: Path) -> None:
    link = {"m": run_id(tools, "durations"), "r": run_id(tools, "ample8-replay"), "ack": "true"}
    app = opened(tools, "request", **link)
    assert "Not comparable: The latency ends with" in plain(app)
    assert tables(app, "difference")[-1]["difference"].isna().all()
