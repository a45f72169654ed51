"""What each class makes of the gap in pass time: by the number of its passes, their geometry, and their duration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from dashboard.charts import figures, style
from dashboard.charts.answer import Answer, Column, answer
from dashboard.charts.figures import Axis, Figure
from dashboard.charts.passes import WORDS, counts
from dashboard.compare.numbers import Key
from dashboard.compare.rows import compare_number
from dashboard.frame import Frame, Side
from dashboard.metrics import PASS_CLASSES
from dashboard.queries import passes
from dashboard.queries.identity import repeats
from dashboard.store import Store

PARTS: tuple[tuple[str, str, str, str], ...] = (
    ("count_ms", "more or fewer passes", "#0072B2", "#56B4E9"),
    ("geometry_ms", "passes of another geometry", "#8C7AA9", "#B7A5D6"),
    ("duration_ms", "longer or shorter at equal geometry", "#D55E00", "#E69F00"),
)
"""Parts of the gap in pass time: column, words, colour in both themes. They sum to the gap of a class."""


def gap(frame: Frame, store: Store, replay: Side) -> tuple[Answer, Figure, str]:
    """What each class makes of the gap in pass time, in parts that sum to it; the rows; and the whole in a sentence."""
    result = passes.same_geometry(store, frame.measured.run_id, replay.run_id, frame.population)
    base = answer(result)
    rows = base.rows.to_pylist()
    total = sum(row["gap_ms"] for row in rows)
    others = [run for run in repeats(store, frame.measured.run_id) if run != replay.run_id]
    spread = _spread(frame, store, tuple(others))
    for row in rows:
        name = row["class"]
        row["gap_share"] = row["gap_ms"] / total if total else None
        row["noise_ms"] = spread.get(name)
        inside = None if row["noise_ms"] is None else abs(row["gap_ms"]) <= row["noise_ms"]
        row["noise_state"] = "noise unknown" if inside is None else "~ inside" if inside else "outside"
        key, pair = Key(f"pass_{name}", "mean"), (frame.measured.run_id, replay.run_id)
        mean = compare_number(store, pair, key, frame.population, frame.estimator, tuple(others))
        row["mean_gap"], row["mean_state"] = mean.gap, mean.state
    columns = [
        Column("class", "Class", pinned=True),
        Column("gap_ms", "Gap in pass time (ms)", "%+.0f"),
        Column("noise_ms", "Noise (± ms)", "%.0f", "largest deviation of a repeat of the measured run"),
        Column("noise_state", "Against the noise"),
        Column("gap_share", "Share of the gap", "percent"),
        *(Column(name, f"{words.capitalize()} (ms)", "%+.0f") for name, words, _, _ in PARTS),
        Column("error", "Error at equal geometry", "percent"),
        Column("mean_gap", "Gap of the mean", "percent"),
        Column("mean_state", "State of the mean"),
        Column("measured_passes", "Measured passes", "%d"),
        Column("replay_passes", "Replay passes", "%d"),
        Column("measured_time_shared", "Measured time at shared geometry", "percent"),
        Column("replay_time_shared", "Replay time at shared geometry", "percent"),
    ]
    bars = [
        (words, style.pick((light, dark), frame.dark), [row[name] / 1e3 for row in reversed(rows)])
        for name, words, light, dark in PARTS
    ]
    labels = [WORDS[row["class"]] for row in reversed(rows)]
    figure = figures.stacked_shares(labels, bars, Axis("replay - measured, s of pass time"), dark=frame.dark)
    figure["layout"] |= {"barmode": "relative", "showlegend": True}
    if not rows:
        figure["data"] = []
    kinds = {"noise_ms": pa.float64(), "gap_share": pa.float64(), "mean_gap": pa.float64()}
    table = base.rows
    for name in ("gap_share", "noise_ms", "noise_state", "mean_gap", "mean_state") if rows else ():
        table = table.append_column(name, pa.array([row[name] for row in rows], kinds.get(name, pa.string())))
    definition = (
        "More or fewer passes: the difference in number at the measured mean of the class. Longer or shorter: the "
        "replay's passes against the measured mean of the same finer cell, where both hold it. The rest are passes of "
        "another geometry. The parts of a class sum to its gap."
    )
    words = _whole(rows, total) if rows else ""
    n = counts(frame, store)
    return replace(base, rows=table, columns=columns, n=n, definition=definition), figure, words


def _spread(frame: Frame, store: Store, others: Sequence[str]) -> dict[str, float]:
    """By class: the largest deviation of a repeat's pass time from the measured one, in ms; empty without repeats."""
    if frame.population.matched:
        return {}
    found: dict[str, float] = {}
    times = [
        {row["class"]: row["time_ns"] or 0 for row in result.rows()}
        for result in (passes.classes(store, run_id, frame.population) for run_id in (frame.measured.run_id, *others))
        if not result.not_recorded
    ]
    for name in PASS_CLASSES[:3]:
        if len(times) > 1:
            found[name] = max(abs(other.get(name, 0) - times[0].get(name, 0)) for other in times[1:]) / 1e6
    return found


def _whole(rows: Sequence[Mapping[str, Any]], total: float) -> str:
    """The gap in pass time and its parts over all classes."""
    measured = sum(row["measured_ms"] for row in rows)
    parts = "; ".join(f"{words} {sum(row[name] for row in rows) / 1e3:+,.2f} s" for name, words, _, _ in PARTS)
    share = f" ({100 * total / measured:+.1f} % of {measured / 1e3:,.1f} s)" if measured else ""
    return f"The replay spends {total / 1e3:+,.2f} s in passes{share}: {parts}."
