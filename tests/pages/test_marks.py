"""No chart sends more marks than a browser draws without a pause, however many rows the runs have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import synthetic
from conftest import Open, run_id

from dashboard import view
from dashboard.charts import draw
from dashboard.charts.panel.checked import Checked

ROWS = 20_000
SAMPLES = Path(__file__).parents[2] / "sample_runs"
DRAWN = ("cohort", "percentiles", "passes", "timing", "coverage", "cache_events", "boundaries", "request")
"""Pages whose charts could grow with a run."""
MOST = 5_000
"""Marks of one chart: points, bars and cells of all its traces, and its shapes and annotations."""


def marks(figure: dict[str, Any]) -> int:
    """How many marks a figure has: points, bars and cells; the gaps between the parts of a line are none."""
    found = len(figure["layout"].get("shapes") or ()) + len(figure["layout"].get("annotations") or ())
    for trace in go.Figure(figure).data:
        held = [_known(values) for name in ("x", "y", "values") if (values := getattr(trace, name, None)) is not None]
        cells = getattr(trace, "z", None)
        found += max([*held, 0]) if cells is None else sum(map(len, cells))
    return found


def _known(values: Sequence[Any]) -> int:
    return sum(value is not None and not (isinstance(value, float) and math.isnan(value)) for value in values)


@pytest.mark.parametrize(
    ("trace", "n"),
    [
        ({"type": "scatter", "x": [1, 2, None, 3], "y": [1, 2, None, 3]}, 3),
        ({"type": "scatter", "x": np.array([1, np.nan, 3]), "y": np.array([1, np.nan, 3])}, 2),
        ({"type": "bar", "y": [1, 2, 3]}, 3),
        ({"type": "heatmap", "x": [1, 2], "y": [1, 2, 3], "z": [[1, 2], [3, 4], [5, 6]]}, 6),
    ],
)
def test_marks_are_counted(trace: dict[str, Any], n: int) -> None:
    assert marks({"data": [trace, trace], "layout": {"shapes": [{"type": "line"}]}}) == 2 * n + 1


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording and a replay of 20,000 requests and more passes, of 2,500 lanes."""
    store = tmp_path_factory.mktemp("large")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic, "LANES", ROWS // synthetic.TURNS)
        synthetic.pair(store)
    return store


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Marks of every figure that is drawn."""
    found: list[int] = []

    def counted(figure: dict[str, Any]) -> Checked:
        found.append(marks(figure))
        return Checked(figure)

    monkeypatch.setattr(draw, "Checked", counted)
    return found


WIDEST = {
    "cohort": {"lanes_from": "-100", "lanes_span": "1000000"},
    "passes": {"pass_from": "-100", "pass_span": "1000000"},
}
"""Controls of pages that choose how much of a run is drawn, at the most they take."""


@pytest.mark.parametrize("page", DRAWN)
def test_no_chart_of_a_large_run_has_too_many_marks(large: Path, opened: Open, drawn: list[int], page: str) -> None:
    app = opened(large, page, **WIDEST.get(page, {}))
    assert not app.exception
    assert drawn
    assert max(drawn) <= MOST


@pytest.mark.parametrize("page", view.PAGES)
def test_no_chart_of_the_samples_has_too_many_marks(opened: Open, drawn: list[int], page: str) -> None:
    """Five sides, as many as a page takes; the wide windows of some charts hold all that was recorded."""
    others = ("tight8-predicted", "tight8_repeat", "ample8", "ample8-predicted")
    replays = [run_id(SAMPLES, name) for name in others]
    app = opened(SAMPLES, page, m=run_id(SAMPLES, "tight8"), r=replays, **WIDEST.get(page, {}))
    assert not app.exception
    assert max(drawn, default=0) <= MOST
