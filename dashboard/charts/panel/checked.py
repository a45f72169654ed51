"""Hands a figure to the browser as it is: plotly would check every property of it again at every look."""

from __future__ import annotations

import base64
from functools import cache
from typing import Any

import numpy as np
import plotly.graph_objects as go

from dashboard.charts.figures import Figure

TYPED = {"float32": "f4", "float64": "f8", "int8": "i1", "uint8": "u1", "int16": "i2", "int32": "i4"}
"""Types of numbers that plotly.js reads as bytes, and its names for them."""


class Checked(go.Figure):
    """A figure whose dictionary is right as it stands.

    Checking one costs as much as a query, and ``figures.py`` makes them all: tests look at every figure with
    plotly's own checks instead.
    """

    def __init__(self, figure: Figure) -> None:
        # Not that of plotly, which checks and copies: the dictionary is all that is ever asked for.
        self._figure = figure

    def to_dict(self) -> dict[str, Any]:
        """The figure with the theme's template, its arrays as bytes."""
        layout = {"template": _template(), **self._figure["layout"]}
        return {"data": as_bytes(self._figure["data"]), "layout": as_bytes(layout)}


def as_bytes(value: Any) -> Any:
    """A value with every array in it as plotly.js reads it: type, bytes and shape; or as a list."""
    if isinstance(value, dict):
        return {name: as_bytes(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_bytes(one) if isinstance(one, (dict, list, tuple, np.ndarray)) else one for one in value]
    if not isinstance(value, np.ndarray):
        return value
    array = value
    if array.dtype == np.int64 and array.size and np.abs(array).max() < 2**31:
        array = array.astype(np.int32)
    if array.dtype.name not in TYPED or not array.size:
        return array.tolist()
    found = {"dtype": TYPED[array.dtype.name], "bdata": base64.b64encode(array.tobytes()).decode("ascii")}
    return found | ({"shape": ", ".join(map(str, array.shape))} if array.ndim > 1 else {})


@cache
def _template() -> Any:
    """The template that plotly gives every figure under Streamlit's theme."""
    return go.Figure().to_dict()["layout"].get("template")
