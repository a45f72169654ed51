"""The far end of a distribution: what its largest requests make of a gap, which they are, and what limits hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from dashboard.charts.answer import Answer, Column, stack
from dashboard.charts.comparison import number_table
from dashboard.charts.figures import Figure
from dashboard.compare import judged_change
from dashboard.compare.limits import Limit, within
from dashboard.compare.noise import Noise
from dashboard.compare.rows import refused
from dashboard.frame import Frame, Side
from dashboard.metrics import Metric
from dashboard.queries import percentiles
from dashboard.queries.identity import repeats
from dashboard.samples import Sample, sample, tail_attribution
from dashboard.store import Store


def tail(frame: Frame, store: Store, metric: Metric, found: Sequence[tuple[Side, Sample]], top: int) -> Answer:
    """How much of the gap between the means the largest requests make, for every candidate; its noise is what repeats
    of the measured run show there."""
    held = {one.run_id: values for one, values in found}
    tops = sorted({1, 5, 10, 20, 50, 100, top})
    rows: list[dict[str, Any]] = []
    apart = []
    for side in frame.replays:
        left = sample(store, frame.measured.run_id, metric, frame.population.for_side(side.run_id))
        said = refused(store, frame.measured.run_id, side.run_id, metric.name)
        apart += [f"{side.role.name.capitalize()} is not comparable: {said}"] if said else []
        withheld = bool(said) or number_table.withheld(frame, side)
        why = number_table.APART if said else number_table.WITHHELD
        noises = _tail_noise(frame, store, metric, side, left, tops)
        for row in tail_attribution(left, held[side.run_id], tops):
            rows.append(
                {
                    "top": row.top,
                    "side": side.role.name,
                    "share": row.share_of_requests,
                    "measured": row.measured,
                    "replay": row.replay,
                    "gap": None if withheld else row.gap,
                    "share_of_gap": None if withheld else row.share_of_gap,
                    "state": why if withheld else judged_change(row.gap, noises.get(row.top)),
                }
            )
    rows.sort(key=lambda row: row["top"])
    many = len(frame.replays) > 1
    columns = [
        Column("top", "Largest requests", "%d", "of the measured run", width=108),
        *([Column("side", "Compared", width=90)] if many else []),
        Column("share", "Share of requests", "percent", width=108),
        Column("measured", f"Add to the mean ({metric.unit})", "%.2f", "what they add on the measured side", width=130),
        Column(
            "replay", f"{'Compared' if many else 'Replay'} ({metric.unit})", "%.2f", "the same share there", width=100
        ),
        Column("gap", f"Part of the gap ({metric.unit})", "%+.2f", width=122),
        Column("share_of_gap", "Share of the gap", "percent", width=108),
        Column("state", "State", width=200),
    ]
    kinds = {
        one.name: pa.int64() if one.format == "%d" else pa.float64() if one.format else pa.string() for one in columns
    }
    table_ = pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()})
    words = "The mean is the area under the quantile curve, so the parts of the tail and of the body sum to its gap."
    n = {run_id: one.n for run_id, one in held.items()}
    return Answer(table_, "", columns, n, words, partly=" ".join(apart))


def _tail_noise(
    frame: Frame, store: Store, metric: Metric, side: Side, left: Sample, tops: Sequence[int]
) -> dict[int, Noise]:
    """Of each count of requests, the largest part that repeats of the measured run show; empty without repeats."""
    if frame.population.matched:
        return {}
    shown: dict[int, list[float]] = {}
    for other in repeats(store, frame.measured.run_id):
        if other != side.run_id:
            for row in tail_attribution(left, sample(store, other, metric, frame.population), tops):
                shown.setdefault(row.top, []).append(abs(row.gap))
    return {top: Noise("repeats", -max(sizes), max(sizes), len(sizes)) for top, sizes in shown.items()}


def slowest(frame: Frame, store: Store, metric: Metric, top: int) -> Answer:
    """The requests with the largest values on every side, with their place in the trace, queue time and reuse."""
    results = [
        (side, percentiles.slowest(store, side.run_id, metric, frame.population_of(side), top)) for side in frame.sides
    ]
    columns = [
        Column("side", "Side", pinned=True),
        Column("value", f"{metric.label} ({metric.unit})", "%.1f", pinned=True),
        Column("turn", "Source-turn"),
        Column("agent_depth", "Depth", "%d", "of the conversation in the tree of agents; 0 is the root"),
        Column("turn_index", "Turn", "%d"),
        Column("queue_time_ms", "Queue time (ms)", "%.1f", "first admission - received"),
        Column("cached_share", "Cached", "percent", "share of the prompt reused at the first admission"),
        Column("input_tokens", "Input (tokens)", "%d"),
        Column("output_tokens", "Output (tokens)", "%d"),
        Column("preemptions", "Preemptions", "%d"),
        Column("lane", "Lane", "%d"),
        Column("dispatched_s", "Dispatched (s)", "%.2f"),
        Column("request_id", "Request"),
    ]
    told = stack(results, columns, {side.run_id: None if r.not_recorded else len(r) for side, r in results})
    rows = told.rows
    if "value" in rows.column_names:
        values = [metric.shown(value) for value in rows.column("value").to_pylist()]
        rows = rows.set_column(rows.column_names.index("value"), "value", pa.array(values, pa.float64()))
    return replace(told, rows=rows, columns=columns, definition=f"{metric.label}: {metric.definition}.")


def limits(frame: Frame, store: Store, asked: Sequence[Limit]) -> Answer:
    """Of every limit the share of values within it, on the measured side and on every candidate."""
    others = repeats(store, frame.measured.run_id)
    rows: list[dict[str, Any]] = []
    for side in frame.replays:
        hidden = number_table.withheld(frame, side)
        pair, rest = (frame.measured.run_id, side.run_id), [one for one in others if one != side.run_id]
        for at, one in enumerate(within(store, pair, asked, frame.population, rest)):
            apart = number_table.WITHHELD if hidden else number_table.APART if one.refused else ""
            change = None if apart else one.difference
            rows.append(
                {
                    "at": at,
                    "limit": one.limit.text,
                    "side": side.role.name,
                    "measured": one.measured,
                    "replay": one.replay,
                    "points": None if change is None else 100 * change,
                    "better": "higher",
                    "state": apart or judged_change(change, one.noise),
                    "measured_n": one.n[0],
                    "replay_n": one.n[1],
                }
            )
    rows.sort(key=lambda row: row["at"])
    columns = [
        Column("limit", "Limit", pinned=True),
        Column("measured", "Within, measured", "percent"),
        Column("side", "Compared"),
        Column("replay", "Within, compared", "percent"),
        Column("points", "Difference (points)", "%+.2f"),
        Column("better", "Better"),
        Column("state", "State", width=150),
        Column("measured_n", "n measured", "%d"),
        Column("replay_n", "n compared", "%d"),
    ]
    kinds = {c.name: pa.int64() if c.format == "%d" else pa.float64() if c.format else pa.string() for c in columns}
    n: dict[str, int | None] = {
        side.run_id: max((row["replay_n"] for row in rows if row["side"] == side.role.name), default=0)
        for side in frame.replays
    }
    n[frame.measured.run_id] = max((row["measured_n"] for row in rows), default=0)
    words = (
        "Values at or below the limit, over all values of the metric: requests that failed have none and are in "
        "neither count. Noise: the largest difference of a repeat. n of the strip: that of the largest sample."
    )
    return Answer(pa.table({k: pa.array([row[k] for row in rows], t) for k, t in kinds.items()}), "", columns, n, words)


def limit_line(figure: Figure, metric: Metric, asked: Sequence[Limit], log: bool, dark: bool) -> Figure:
    """A line in the figure at every limit of its metric, across the value axis ``x``."""
    own = [limit for limit in asked if limit.metric.name == metric.name and (limit.ms > 0 or not log)]
    colour = "#9A9AA2" if dark else "#6F6F76"
    shapes = [
        {
            "type": "line",
            "xref": "x",
            "yref": "y domain",
            "x0": limit.ms,
            "x1": limit.ms,
            "y0": 0,
            "y1": 1,
            "line": {"color": colour, "width": 1, "dash": "dot"},
            "label": {"text": f"limit {limit.ms:g} ms", "textposition": "end", "font": {"size": 10, "color": colour}},
        }
        for limit in own
    ]
    if shapes:
        figure["layout"]["shapes"] = [*figure["layout"].get("shapes", ()), *shapes]
    return figure
