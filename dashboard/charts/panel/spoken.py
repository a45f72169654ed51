"""A chart in one breath, for those who hear it: what is drawn, how many marks, from where to where.

The rows of every chart stand behind it as a table; this says whether it is worth opening them.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dashboard.frame import Frame, Side

MOST_TRACES = 6
"""Series that are described one by one; what follows is only counted."""
KINDS = {"bar": "bars", "heatmap": "cells", "histogram": "bars"}


def spoken(frame: Frame, title: str, figure: dict[str, Any] | None, sides: Sequence[Side] | None = None) -> str:
    """The name of a chart or a table: its title, its runs and, of a chart, the range of each series."""
    runs = "; ".join(f"{side.role.name} {side.run_id}" for side in sides or frame.sides)
    drawn = [words for trace in (figure or {}).get("data", ()) if (words := _trace(trace))]
    more = len(drawn) - MOST_TRACES
    said = drawn[:MOST_TRACES] + ([f"and {more} more"] if more > 0 else [])
    return ". ".join([title, runs, *said])


def _trace(trace: dict[str, Any]) -> str:
    """Name, kind, number of marks and range of one series; nothing of a mere line to compare with."""
    if trace.get("hoverinfo") == "skip" and trace.get("type") == "scatter":
        return ""
    kind = str(trace.get("type", "scatter"))
    along = "z" if kind == "heatmap" else "x" if trace.get("orientation") == "h" else "y"
    words = f"{name}: " if (name := html.unescape(str(trace.get("name") or ""))) else ""
    values = np.asarray(trace.get(along, ())).ravel()
    if values.dtype.kind not in "fiu":
        return f"{words}{values.size} {_kind(kind, trace)}, from {values[0]} to {values[-1]}" if values.size else ""
    known = values[np.isfinite(values)]
    if not known.size:
        return ""
    return f"{words}{known.size:,} {_kind(kind, trace)}, from {_number(known.min())} to {_number(known.max())}"


def _kind(kind: str, trace: dict[str, Any]) -> str:
    if kind in KINDS:
        return KINDS[kind]
    return "points of a line" if "lines" in str(trace.get("mode", "")) else "points"


def _number(value: float) -> str:
    """Three digits are enough to hear."""
    number = float(value)
    if number and not 1e-3 <= abs(number) < 1e6:
        return f"{number:.3g}"
    places = 0 if abs(number) >= 100 else max(0, 2 - math.floor(math.log10(abs(number)))) if number else 0
    return f"{number:,.{places}f}"
