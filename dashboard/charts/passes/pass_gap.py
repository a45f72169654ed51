"""What each class makes of the gap in pass time: by the number of its passes, their geometry, and their duration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from dashboard.charts import figures, style
from dashboard.charts.answer import Answer, Column, answer
from dashboard.charts.figures import Axis, Figure
from dashboard.charts.passes.passes import INSIDE, WORDS, counts
from dashboard.frame import Frame, Side, header
from dashboard.metrics import PASS_CLASSES
from dashboard.queries import passes
from dashboard.queries.identity import repeats
from dashboard.store import Store

PARTS: tuple[tuple[str, str, str, str], ...] = (
    ("count_ms", "more or fewer passes", *style.PARTS[0]),
    ("geometry_ms", "passes of another geometry", *style.PARTS[1]),
    ("duration_ms", "longer or shorter at equal geometry", *style.PARTS[2]),
)
"""Parts of the gap in pass time: column, words, colour in both themes. They sum to the gap of a class."""
SIDES = ("measured", "replay")


def gap(frame: Frame, store: Store, replay: Side) -> tuple[Answer, Figure, str]:
    """What each class makes of the gap in pass time, in parts that sum to it; the rows; and the whole in a sentence."""
    result = passes.same_geometry(store, frame.measured.run_id, replay.run_id, frame.population)
    base = answer(result)
    rows = base.rows.to_pylist()
    total = sum(row["gap_ms"] for row in rows)
    spread = _spread(frame, store, replay)
    for row in rows:
        time, mean = spread.get(row["class"], (None, None))
        left, right = (row[f"{side}_ms"] / row[f"{side}_passes"] if row[f"{side}_passes"] else 0.0 for side in SIDES)
        row["gap_share"] = row["gap_ms"] / total if total else None
        row["noise_ms"], row["noise_state"] = time, _state(row["gap_ms"], time)
        row["mean_gap"] = right / left - 1 if left and right else None
        row["mean_state"] = _state(right - left, mean) if left and right else "not comparable"
    columns = [
        Column("class", "Class", pinned=True),
        Column("gap_ms", "Gap in pass time (ms)", "%+.0f"),
        Column("noise_ms", "Noise (± ms)", "%.0f", "largest deviation of a repeat of the measured run"),
        Column("noise_state", "Against the noise"),
        Column("gap_share", "Share of the gap", "percent"),
        *(Column(name, f"{words.capitalize()} (ms)", "%+.0f") for name, words, _, _ in PARTS),
        Column("error", "Error at equal geometry", "percent"),
        Column("mean_gap", "Gap of the mean", "percent"),
        Column("mean_state", "Mean against the noise"),
        Column("measured_passes", "Measured passes", "%d"),
        Column("replay_passes", "Replay passes", "%d"),
        Column("measured_time_shared", "Measured time at shared geometry", "percent"),
        Column("replay_time_shared", "Replay time at shared geometry", "percent"),
    ]
    bars = [
        (words, style.pick((light, dark), frame.dark), [row[name] / 1e3 for row in reversed(rows)])
        for name, words, light, dark in PARTS
    ]
    labels = [WORDS[row["class"]] + ("" if row["noise_state"] != INSIDE else " ~") for row in reversed(rows)]
    figure = figures.stacked_shares(
        labels, bars, Axis(header(frame, "replay - measured, s of pass time")), dark=frame.dark
    )
    figure["layout"] |= {"barmode": "relative", "showlegend": True}
    if not rows:
        figure["data"] = []
    table = base.rows
    for name in ("gap_share", "noise_ms", "noise_state", "mean_gap", "mean_state") if rows else ():
        kind = pa.string() if name.endswith("state") else pa.float64()
        table = table.append_column(name, pa.array([row[name] for row in rows], kind))
    definition = (
        "More or fewer passes: the difference in number at the measured mean of the class. Longer or shorter: the "
        "replay's passes against the measured mean of the same finer cell, where both hold it. The rest are passes of "
        "another geometry. The parts of a class sum to its gap; ~ is inside the noise of the repeats."
    )
    words = _whole(rows, total, replay.called) + _together(frame, store, replay) if rows else ""
    return replace(base, rows=table, columns=columns, n=counts(frame, store), definition=definition), figure, words


def _state(difference: float, noise: float | None) -> str:
    return "noise unknown: no repeat" if noise is None else INSIDE if abs(difference) <= noise else "outside"


def _spread(frame: Frame, store: Store, replay: Side) -> dict[str, tuple[float, float | None]]:
    """By class: the largest deviation of a repeat's pass time, and of its mean pass, from the measured one, in ms.

    Empty without repeats of the measured run, or where the population is decided by the other side.
    """
    others = [run for run in repeats(store, frame.measured.run_id) if run != replay.run_id]
    if frame.population.matched or not others:
        return {}
    results = [passes.classes(store, run, frame.population) for run in (frame.measured.run_id, *others)]
    measured, *again = [{row["class"]: row for row in found.rows()} for found in results if not found.not_recorded]
    found: dict[str, tuple[float, float | None]] = {}
    for name in PASS_CLASSES[:3] if again else ():
        times = [abs(_of(other, name, "time_ns") - _of(measured, name, "time_ns")) for other in again]
        both = [other for other in again if name in other and name in measured]
        means = [abs(_of(other, name, "mean_ns") - _of(measured, name, "mean_ns")) for other in both]
        found[name] = max(times) / 1e6, max(means) / 1e6 if means else None
    return found


def _of(rows: Mapping[str, Mapping[str, Any]], name: str, column: str) -> float:
    return float(rows[name][column] or 0) if name in rows else 0.0


def _together(frame: Frame, store: Store, replay: Side) -> str:
    """What a sum over several schedulers means; empty where either side has one."""
    sides = ((f"the {frame.measured.noun} run", frame.measured.run_id), (replay.called, replay.run_id))
    several = [(name, len(found)) for name, run_id in sides if len(found := passes.ranks(store, run_id)) > 1]
    if not several:
        return ""
    who = " and ".join(f"{number} of {name}" for name, number in several)
    return (
        f" Passes of all schedulers are counted ({who}): their times add up to more than the clock shows. What a "
        "rank waited for the slowest is not counted; where ranks are priced together, each lasts as long as the step."
    )


def _whole(rows: Sequence[Mapping[str, Any]], total: float, name: str) -> str:
    """The gap in pass time and its parts over all classes."""
    measured = sum(row["measured_ms"] for row in rows)
    parts = "; ".join(f"{words} {sum(row[name] for row in rows) / 1e3:+,.2f} s" for name, words, _, _ in PARTS)
    share = f" ({100 * total / measured:+.1f} % of {measured / 1e3:,.1f} s)" if measured else ""
    return f"{name[0].upper()}{name[1:]} spends {total / 1e3:+,.2f} s in passes{share}: {parts}."
