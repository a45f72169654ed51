"""The Source page: validity box, the tool's figures beside ours, figures over time, and the states that lack them."""

from __future__ import annotations

from pathlib import Path

import pytest
import synthetic
import tool_runs
from conftest import Open, run_id
from test_pages import words

from engine.importers import import_any

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("imported")
    synthetic.pair(store)
    import_any(DATA / "vllm_bench" / "detailed.json", store)
    tool_runs.summary(store)
    return store


def test_the_box_says_what_failed_first(opened: Open, imported: Path) -> None:
    app = opened(imported, "source", src=run_id(imported, "summary"))
    assert not app.exception
    said = words(app).replace("\\", "")
    assert "▲ failed" in said
    assert "1 failed, 1 unknown" in said
    assert said.index("rows_used") < said.index("one_clock")
    assert "1 row was left out: result.json line 3 is no object" in said


def test_figures_stand_beside_ours_with_the_reason(opened: Open, imported: Path) -> None:
    """The tool's mean TTFT is 28.805 ms; ours, from the first content of the 34 answers that had one, is larger."""
    app = opened(imported, "source", src=run_id(imported, "detailed"))
    assert not app.exception
    table = next(element.value for element in app.dataframe if "told" in element.value.columns)
    row = table[(table["metric"] == "TTFT") & (table["statistic"] == "mean")].iloc[0]
    assert row["told"] == pytest.approx(28.805447972242998)
    assert row["difference"] < -9
    assert "role chunk" in row["why"]
    assert "over 36 values, ours over 34" in row["why"]


def test_a_run_without_samples_says_so(opened: Open, imported: Path) -> None:
    app = opened(imported, "source", src=run_id(imported, "ample8"))
    assert not app.exception
    assert "No samples of the server or the GPUs" in words(app)


def test_a_link_restores_run_and_search(opened: Open, imported: Path) -> None:
    app = opened(imported, "source", src=run_id(imported, "detailed"), src_find="max_concurrent")
    assert app.session_state["src"] == run_id(imported, "detailed")
    table = next(element.value for element in app.dataframe if "scope" in element.value.columns)
    assert list(table["name"]) == ["max_concurrent_requests"]
    assert list(table["value"]) == [17.0]


def test_samples_are_drawn_over_time(opened: Open, tmp_path: Path) -> None:
    (found,) = import_any(DATA / "aiperf" / "edge_cases", tmp_path)
    app = opened(tmp_path, "source", src=found)
    assert not app.exception
    assert len(app.get("plotly_chart")) == 1


def test_a_run_without_lanes_has_a_cohort_page(opened: Open, tmp_path: Path) -> None:
    (found,) = import_any(DATA / "vllm_bench" / "detailed.json", tmp_path)
    app = opened(tmp_path, "cohort", m=found)
    assert not app.exception
    assert not app.error
    assert "Lanes over time" in words(app)
