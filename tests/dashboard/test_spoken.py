"""What a chart is called for those who hear it: its runs, its series, how many marks, from where to where."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dashboard.charts.panel.spoken import spoken

SIDES = (
    SimpleNamespace(role=SimpleNamespace(name="measured"), run_id="a-0123"),
    SimpleNamespace(role=SimpleNamespace(name="replay"), run_id="b-4567"),
)
FRAME: Any = SimpleNamespace(sides=SIDES)


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (
            {"type": "scatter", "mode": "lines", "name": "one &lt;b&gt;", "y": np.array([1.0, np.nan, 250.4])},
            "one <b>: 2 points of a line, from 1.00 to 250",
        ),
        ({"type": "bar", "name": "x", "y": [0.0, 1234.0]}, "x: 2 bars, from 0 to 1,234"),
        ({"type": "bar", "orientation": "h", "y": ["p", "q"], "x": [-0.05, 12.34]}, "2 bars, from -0.0500 to 12.3"),
        ({"type": "heatmap", "z": np.array([[1e-6, 2e9]])}, "2 cells, from 1e-06 to 2e+09"),
        ({"type": "scatter", "mode": "markers", "y": ["first", "last"]}, "2 points, from first to last"),
        ({"type": "scatter", "hoverinfo": "skip", "y": [1.0, 2.0]}, None),
        ({"type": "scatter", "y": [np.nan]}, None),
        ({"type": "scatter", "y": []}, None),
    ],
)
def test_one_series(trace: dict[str, Any], words: str | None) -> None:
    told = spoken(FRAME, "TTFT, ms", {"data": [trace]})
    assert told == "TTFT, ms. measured a-0123; replay b-4567" + (f". {words}" if words else "")


def test_many_series_are_counted() -> None:
    traces = [{"type": "bar", "y": [1.0]}] * 9
    assert spoken(FRAME, "t", {"data": traces}, SIDES[:1]).endswith(". and 3 more")
    assert spoken(FRAME, "t", None, SIDES[:1]) == "t. measured a-0123"
