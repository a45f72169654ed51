"""The rungs of an alignment, the checks of one, and how far each is off beside what is allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from dashboard.charts import figures, style
from dashboard.charts.answer import Answer, Column
from dashboard.charts.figures import Axis, Figure
from dashboard.compare.align import WORDS, Alignment, Check, Rung
from dashboard.frame import Frame
from dashboard.render.align import figure, says, unit_of, verdict_of

RUNGS = [
    Column("rung", "Rung", "%d", pinned=True, width=50),
    Column("name", "Name", pinned=True, width=160),
    Column("verdict", "Verdict", width=140),
    Column("says", "What it shows", width=620),
    Column("checks", "Checks", "%d", width=65),
    Column("needed", "What would be needed for the rest", width=420),
]
CHECKS = [
    Column("check", "Check", pinned=True, width=330),
    Column("side", "Side", width=80),
    Column("verdict", "Verdict", width=125),
    Column("unit", "Unit", width=80),
    Column("expected", "Expected", help="What it should be; of a check on both sides, the measured figure", width=110),
    Column("found", "Found", width=110),
    Column("off", "Off (%)", "%+.1f", "found / expected - 1, on unrounded values", width=70),
    Column("allowed", "Allowed (%)", "%.1f", "the tolerance, or the noise where that is more", width=85),
    Column(
        "noise",
        "Noise (%)",
        "%.1f",
        "how far the measured side moves by itself, to the side on which it is off",
        width=75,
    ),
    Column("n", "n", "%d", width=65),
    Column("why", "Why", width=420),
    Column("needed", "What would be needed", width=380),
]


def rungs(found: Alignment) -> Answer:
    """Every rung with its verdict, or that it is not to be read yet."""
    rows = [
        {
            "rung": rung.number,
            "name": rung.name,
            "verdict": verdict_of(found, rung),
            "says": says(found, rung),
            "checks": len(rung.checks),
            "needed": " ".join(rung.needed) or None,
        }
        for rung in found.rungs
    ]
    definition = (
        "Rungs are judged from the bottom, each by its own checks. One above a rung that fails is not to be read yet: "
        "what stands there may be its doing."
    )
    return Answer(_table(rows, RUNGS), "", RUNGS, definition=definition)


def checks(frame: Frame, found: Alignment, rung: Rung) -> Answer:
    """The checks of a rung with figures, bounds and verdicts."""
    rows = [
        {
            "check": check.name,
            "side": None if check.side == "both" else check.side,
            "verdict": WORDS[check.verdict],
            "unit": unit_of(check),
            "expected": figure(check.expected, check.unit),
            "found": figure(check.found, check.unit),
            "off": _percent(check.off),
            "allowed": _percent(check.allowed),
            "noise": _percent(check.noise),
            "n": check.n,
            "why": check.why or None,
            "needed": check.needed or None,
        }
        for check in rung.checks
    ]
    columns = [column for column in CHECKS if any(row[column.name] is not None for row in rows)]
    definition = f"{rung.question} Tolerance: {found.tolerance:.1%}."
    return Answer(_table(rows, columns), "", columns, definition=definition)


def offs(rung: Rung, dark: bool) -> Figure | None:
    """How far each check is off, over what is allowed; None where no check has both. Exact ones are in the table."""
    shown = [check for check in rung.checks if check.off is not None and check.allowed][::-1]
    if not shown:
        return None
    names = [_label(check) for check in shown]
    grey = style.GRID_DARK if dark else style.GRID_LIGHT
    bars: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "name": "allowed",
        "y": names,
        "x": np.array([2 * (check.allowed or 0.0) for check in shown], np.float32),
        "base": np.array([-(check.allowed or 0.0) for check in shown], np.float32),
        "marker": {"color": grey, "line": {"width": 0}},
        "hoverinfo": "skip",
    }
    traces = [bars]
    calm, strong = style.PARTS[0], style.PARTS[2]  # of no side: a verdict is no run
    for verdict, symbol, colours in (("pass", "circle", calm), ("fail", "x", strong), ("unknown", "circle-open", calm)):
        own = [check for check in shown if check.verdict == verdict]
        if verdict == "unknown" and not own:
            continue
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": WORDS[verdict],  # type: ignore[index]
                "y": [_label(check) for check in own],
                "x": np.array([check.off for check in own], np.float32),
                "marker": {"symbol": symbol, "size": 10, "color": style.pick(colours, dark)},
                "hovertemplate": "%{y}: %{x:+.1%}<extra></extra>",
            }
        )
    x, y = Axis("off: found / expected - 1", percent=True), Axis("", categories=tuple(names))
    drawn = figures.compose(traces, x, y, dark=dark, height=130 + 24 * len(names))
    drawn["layout"]["bargap"] = 0.35
    drawn["layout"]["xaxis"] |= {"zeroline": True, "zerolinecolor": "#9A9AA2"}
    return drawn


def _label(check: Check) -> str:
    return check.name if check.side == "both" else f"{check.name} ({check.side})"


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _table(rows: list[dict[str, Any]], columns: list[Column]) -> pa.Table:
    kinds = {"n": pa.int64(), "rung": pa.int64(), "checks": pa.int64()}
    kinds |= dict.fromkeys(("off", "allowed", "noise"), pa.float64())
    return pa.table({c.name: pa.array([row[c.name] for row in rows], kinds.get(c.name, pa.string())) for c in columns})
