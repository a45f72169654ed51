"""Figures in a page that stands alone: the library once, each figure as JSON, and what the dark theme changes of it."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from plotly.offline import get_plotlyjs

from dashboard.charts.figures import Figure
from dashboard.charts.panel.checked import as_bytes

Path = list[str | int]


def library() -> str:
    """The text of plotly.js: it goes into a page once, and nothing is fetched."""
    return str(get_plotlyjs())


def figure_json(light: Figure, dark: Figure) -> str:
    """A figure with the places where the dark theme has other values, as JSON that may stand inside a script element.

    Args:
        light, dark: the same figure in both themes; they differ in colours alone.
    """
    own, other = jsonable(as_bytes(light)), jsonable(as_bytes(dark))
    return script_json({"data": own["data"], "layout": own["layout"], "dark": changes(own, other)})


def changes(one: Any, other: Any, at: Path | None = None) -> list[tuple[Path, Any]]:
    """Where two values of one shape differ: paths, each with the other's value."""
    at = at or []
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [found for name in one for found in changes(one[name], other[name], [*at, name])]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [
            found for index, pair in enumerate(zip(one, other, strict=True)) for found in changes(*pair, [*at, index])
        ]
    return [] if one == other else [(at, other)]


def jsonable(value: Any) -> Any:
    """A value of JSON: what is no number is null.

    Floats keep 12 digits: sums that are added up in another order differ in the last of their 16, and the same runs are
    to give the same page.
    """
    if isinstance(value, dict):
        return {str(name): jsonable(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(one) for one in value]
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, float):
        return value
    return float(f"{value:.12g}") if math.isfinite(value) else None


def script_json(value: Any) -> str:
    """JSON in which nothing can end the script element around it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
