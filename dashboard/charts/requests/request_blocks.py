"""The blocks of one prompt: reused or computed, who had stored them, and why the others were not there."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from dashboard.charts import figures, style
from dashboard.charts.answer import Answer, Column, stack
from dashboard.charts.figures import Axis, Figure
from dashboard.charts.requests.request import Chosen
from dashboard.frame import Frame
from dashboard.queries import request
from dashboard.store import Store

STATES: dict[str, tuple[str, str]] = {
    "hit": ("#0B4A75", "#9AD3F5"),
    "loaded from the host": ("#2F8F83", "#7CCFC3"),
    "held, not hit": ("#8C7AA9", "#B7A5D6"),
    "evicted before": ("#D0702C", "#E89B4F"),
    "never stored before": ("#C9C9CF", "#55555C"),
    "reuse not recorded": ("#9A9A9A", "#6A6A6A"),
}
"""What the first admission found of a block, with its colours."""


def blocks(frame: Frame, store: Store, chosen: Chosen) -> tuple[Answer, Figure, str]:
    """Each full block of the prompt as a piece of a bar per side; the rows; and the counts in a sentence."""
    results = [(side, request.blocks(store, side.run_id, one)) for side, one in chosen.sides]
    shown = [(side, result.rows()) for side, result in results if not result.not_recorded and len(result)]
    runs = [(side.role.name, run) for side, rows in shown for run in _runs(rows)]
    traces = []
    for state, colours in STATES.items():
        mine = [(name, run) for name, run in runs if run["state"] == state]
        if mine:
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": state,
                    "y": [name for name, _ in mine],
                    "base": np.array([run["first"] for _, run in mine], dtype=np.float32),
                    "x": np.array([run["blocks"] for _, run in mine], dtype=np.float32),
                    "width": 0.62,
                    "text": [_words(run) for _, run in mine],
                    "textposition": "none",
                    "hovertemplate": "%{text}<extra>%{y}</extra>",
                    "marker": {
                        "color": style.pick(colours, frame.dark),
                        "line": {"width": 1, "color": "#17171A" if frame.dark else "#FFFFFF"},
                    },
                }
            )
    names = tuple(side.role.name for side, _ in shown)
    figure = figures.compose(
        traces,
        Axis("block of the prompt"),
        Axis("", categories=names, reverse=True),
        dark=frame.dark,
        height=120 + 34 * len(names),
    )
    figure["layout"] |= {"barmode": "overlay", "showlegend": True}
    columns = [
        Column("block_index", "Block", "%d"),
        Column("state", "At the first admission"),
        Column("stored_by", "Stored before by"),
        Column("stored_s", "Stored before (s)", "%.3f"),
        Column("evicted_before_s", "Evicted before (s)", "%.3f"),
        Column("stored_again_s", "Stored after (s)", "%.3f"),
        Column("evicted_after_s", "Evicted after (s)", "%.3f"),
    ]
    n = {side.run_id: None if result.not_recorded else len(result) for side, result in results}
    found = stack(
        results, columns, n, "Before and after are seen from the first admission; the last of each kind. n: blocks."
    )
    counted = "; ".join(f"{side.role.name}: {_counts(rows)}" for side, rows in shown)
    return replace(found, empty="No full block of this prompt is recorded."), figure, counted


def _counts(rows: Sequence[Mapping[str, Any]]) -> str:
    counts = Counter(row["state"] for row in rows)
    return f"{len(rows)} full blocks, " + ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])


def _runs(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Neighbouring blocks of one state that one request stored."""
    found = []
    for (state, by), group in groupby(rows, key=lambda row: (row["state"], row["stored_by"])):
        held = list(group)
        found.append({"state": state, "by": by, "first": held[0]["block_index"], "blocks": len(held)})
    return found


def _words(run: Mapping[str, Any]) -> str:
    last = run["first"] + run["blocks"] - 1
    where = f"block {run['first']}" if run["blocks"] == 1 else f"blocks {run['first']}–{last}"
    by = html.escape(run["by"] or "", quote=False)  # Plotly reads tags
    return f"{where}: {run['state']}" + (f"<br>stored before by {by}" if by else "")
