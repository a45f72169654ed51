"""What a logarithmic axis leaves out: it has no place for values of zero or less."""

from __future__ import annotations

import html
from collections import Counter
from typing import Any

import numpy as np

from dashboard.charts.figures import Figure

NOT_ON_LOG = "Not on the log axis, as they are zero or less"


def points_left_out(figure: Figure) -> str:
    """How many points of each trace of a figure have no place on its logarithmic axes; empty where all have."""
    counts: Counter[str] = Counter()
    for trace in figure["data"]:
        name = html.unescape(trace.get("name") or "")
        held = [
            ~(values > 0) & ~np.isnan(values) for along in "xy" if (values := _logarithmic(figure, trace, along)).size
        ]
        if name and held:
            counts[name] += int(np.logical_or.reduce(held).sum())
    told = ", ".join(
        f"{count:,} {'point' if count == 1 else 'points'} of {name}" for name, count in counts.items() if count
    )
    return f"{NOT_ON_LOG}: {told}." if told else ""


def _logarithmic(figure: Figure, trace: dict[str, Any], along: str) -> np.ndarray:
    """The values of a trace along an axis that is logarithmic; none where it is not."""
    axis = figure["layout"].get(f"{along}axis{trace.get(f'{along}axis', along)[1:]}", {})
    if axis.get("type") != "log" or trace.get(along) is None:
        return np.zeros(0)
    return np.asarray(trace[along], dtype=np.float64)
