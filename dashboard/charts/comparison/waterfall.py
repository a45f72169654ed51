"""The gap of a mean as a waterfall of its signed parts, and the table under it."""

from __future__ import annotations

import pyarrow as pa

from dashboard.charts import style
from dashboard.charts.answer import Answer, Column
from dashboard.charts.figures import Axis, Figure, compose
from dashboard.compare import Row, judged
from dashboard.compare.decomposition import Decomposition, Part
from dashboard.frame import Frame, Side, header

DEFINITION = (
    "Source-turns that both sides finished are taken apart stage by stage, and the parts sum to the gap; cohort "
    "composition is what the other turns of either side add to it. A part is inside the noise (~) when its interval "
    "holds zero."
)


def waterfall(frame: Frame, side: Side, found: Decomposition, mean: Row) -> tuple[Answer, Figure]:
    """The parts of the gap of one mean, in the order of a request's life, and their total."""
    shown = [part for part in found.parts if part.value_ms is not None and not silent(part)]
    names = [*(part.label for part in shown), "Gap of the mean"]
    values = [*(part.value_ms for part in shown), found.gap]
    below, above = (style.pick((style.DIVERGING[end][1], style.DIVERGING_DARK[end][1]), frame.dark) for end in (0, 4))
    trace = {
        "type": "waterfall",
        "name": found.label,
        "orientation": "h",
        "y": names,
        "x": values,
        "measure": [*("relative" for _ in shown), "total"],
        "text": [*(f"{part.value_ms:+.2f}{' ~' if part.inside else ''}" for part in shown), f"{found.gap or 0:+.2f}"],
        "textposition": "outside",
        "cliponaxis": False,
        "hovertemplate": "%{y}: %{text} ms<extra></extra>",
        "decreasing": {"marker": {"color": below}},
        "increasing": {"marker": {"color": above}},
        "totals": {"marker": {"color": "#9A9AA2" if frame.dark else "#77777F"}},
        "connector": {"line": {"color": style.GRID_DARK if frame.dark else style.GRID_LIGHT, "width": 1}},
    }
    x = Axis(header(frame, f"replay - measured, mean {found.label}, ms"))
    figure = compose([trace], x, Axis("", reverse=True), dark=frame.dark, height=70 + 30 * len(names))
    figure["layout"]["xaxis"] |= {"zeroline": True, "zerolinewidth": 1, "range": _reach(values[:-1])}
    figure["layout"]["yaxis"]["showgrid"] = False  # its lines would run through the figures beside the bars
    figure["layout"]["margin"] |= {"t": 8, "r": 40}
    return table(frame, side, found, mean), figure


def _reach(steps: list[float | None]) -> list[float]:
    """The range of the running total, with room for the labels at its ends."""
    total, ends = 0.0, [0.0]
    for step in steps:
        total += step or 0.0
        ends.append(total)
    room = 0.14 * ((max(ends) - min(ends)) or 1.0)
    return [min(ends) - room, max(ends) + room]


def silent(part: Part) -> bool:
    """Whether a part says nothing: nothing was left that could not be split."""
    return part.name == "unsplit" and part.value_ms == 0


def table(frame: Frame, side: Side, found: Decomposition, mean: Row) -> Answer:
    """The parts with their share of the gap and their noise, and their total, the gap of ``mean``."""
    gap = found.gap
    rows = [
        {
            "part": part.label,
            "value_ms": part.value_ms,
            "share": None if part.value_ms is None or not gap else 100 * part.value_ms / gap,
            "low_ms": part.low_ms,
            "high_ms": part.high_ms,
            "state": part.state,
            "rests_on": part.rests_on,
        }
        for part in found.parts
        if not silent(part)
    ]
    if found.parts:
        total = {"part": "Gap of the mean", "value_ms": gap, "share": 100.0 if gap else None}
        rows.append(total | {"state": judged(mean), "rests_on": mean.reason})
    numbers = ("value_ms", "share", "low_ms", "high_ms")
    names = ("part", *numbers, "state", "rests_on")
    columns = [
        Column("part", "Part", pinned=True, width=250),
        Column("value_ms", "Replay - measured (ms)", "%+.3f"),
        Column("share", "Share of the gap (%)", "%+.1f"),
        Column("low_ms", "Noise from (ms)", "%+.3f", "where the part may lie when nothing changes but chance"),
        Column("high_ms", "Noise to (ms)", "%+.3f"),
        Column("state", "State", width=140),
        Column("rests_on", "Rests on", width=380),
    ]
    return Answer(
        pa.table(
            {
                name: pa.array([row.get(name) for row in rows], pa.float64() if name in numbers else pa.string())
                for name in names
            }
        ),
        found.sql,
        columns,
        {frame.measured.run_id: found.n[0], side.run_id: found.n[1]},
        f"{DEFINITION} {found.note}",
        empty=found.note,
    )
