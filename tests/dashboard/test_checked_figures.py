"""What the browser gets of a figure is what plotly would have sent after checking it."""

from __future__ import annotations

import json

import numpy as np
import plotly.graph_objects as go
import plotly.io as pio
import pytest

from dashboard.charts.panel.checked import Checked, as_bytes

ARRAYS = [
    np.array([1.5, np.nan, -2.0], dtype=np.float32),
    np.array([0.1, 1e300]),
    np.array([[1, 2], [3, 4]], dtype=np.int32),
    np.array([1, 2, 300]),
    np.array([True, False]),
    np.array(["a", "b"], dtype=object),
    np.empty(0),
]


def plain(value: object) -> object:
    """Bytes read back as lists, with NaN as plotly.js sees it."""
    if isinstance(value, dict) and "bdata" in value:
        import base64

        array = np.frombuffer(base64.b64decode(value["bdata"]), dtype=value["dtype"])
        if "shape" in value:
            array = array.reshape([int(one) for one in value["shape"].split(",")])
        return plain(array.tolist())
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and value != value else value


def test_a_figure_arrives_as_after_the_checks_of_plotly() -> None:
    figure = {
        "data": [
            {"type": "scatter", "x": ARRAYS[3], "y": ARRAYS[0], "customdata": ["a", "b", "c"], "name": "one"},
            {"type": "heatmap", "z": ARRAYS[2].astype(np.float32), "x": ["a", "b"], "y": ["c", "d"]},
        ],
        "layout": {"title": {"text": "t"}, "xaxis": {"range": [0, 1.5]}},
    }
    ours, theirs = (json.loads(pio.to_json(f, validate=False)) for f in (Checked(figure).to_dict(), go.Figure(figure)))
    assert plain(ours) == plain(theirs)
    assert ours["layout"]["template"]  # the theme goes with it


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_arrays_keep_their_values(array: np.ndarray) -> None:
    told = plain(as_bytes({"x": array}))
    assert told == {"x": plain(array.tolist())}


def test_whole_numbers_that_a_browser_cannot_read_as_bytes_are_a_list() -> None:
    assert as_bytes(np.array([2**40, 1])) == [2**40, 1]
