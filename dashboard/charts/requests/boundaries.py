"""Charts of the boundaries of requests: stages stacked per side in the mean and in the tail, and turn by turn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dashboard.charts import figures, style
from dashboard.charts.answer import Answer, Column
from dashboard.charts.comparison.number_table import WITHHELD
from dashboard.charts.figures import Axis, Figure
from dashboard.compare import judged_change
from dashboard.compare.boundaries import Boundaries, Change, Group
from dashboard.compare.boundary_rows import BOUNDARIES, Choice
from dashboard.compare.noise import MARKS, Noise, open_words
from dashboard.frame import Frame, Side
from dashboard.metrics import METRICS
from dashboard.queries.identity import repeats
from dashboard.queries.percentiles import EDGES, PROPERTIES, bucket_label
from dashboard.store import Store

COLOURS: dict[str, tuple[str, str]] = {
    "dispatched": ("#9A9A9A", "#6F6F76"),
    "arrived": ("#5B8DB8", "#7FB0D8"),
    "received": ("#E3C567", "#D8B84F"),
    "admitted": ("#B8860B", "#F0C75E"),
    "first_pass": ("#5A2A80", "#B58AD6"),
    "first_token": ("#9461B8", "#D3B3E8"),
    "transferred": ("#C0504D", "#E08A87"),
    "first_visible": ("#2E8B73", "#4FC3A1"),
    "last_token": ("#3F5A78", "#9DB8D2"),
    "last_visible": ("#7FC4AE", "#9BDCC8"),
}
"""Colours of the stages by the boundary that ends them; the sides are told by position."""
SPLITS = {"role": "role", "turn_index": PROPERTIES["turn_index"], "input_tokens": PROPERTIES["input_tokens"]}
_ROLES = (("root", 0.0, 1.0), ("child", 1.0, None))
TOP = 60
NOT_COMPARABLE = "not comparable"


def boundaries(frame: Frame, store: Store, until: str) -> Boundaries:
    """The stages of every side of the frame; repeats of the measured run say their noise."""
    ids = [side.run_id for side in frame.sides]
    populations = tuple(frame.population_of(side) for side in frame.sides)
    return Boundaries(store, ids, populations, until, repeats(store, ids[0]))


def said(frame: Frame, found: Boundaries) -> list[str]:
    """What is merged, and how many requests are left out, in words."""
    words = [sentence for sentence in (found.problem, found.clocks) if sentence]
    missing = [BOUNDARIES[name] for name in found.merged]
    if missing and not found.problem:
        words.append(f"Not recorded on every side, so their stages are merged: {', '.join(missing)}.")
    for side, count in zip(frame.sides, found.dropped, strict=False):
        if count:
            words.append(f"{count:,} requests of {side.role.name} lack a boundary that others have and are left out.")
    return words


def verdict(found: Boundaries, index: int, choose: Choice, what: str, name: str) -> str:
    """One sentence: is the missing time frontend, queue, GPU or output?"""
    if index in found.apart:
        return f"{what} {name} is not comparable. {found.apart[index]}"
    layers = found.layers(index, choose)
    if not layers:
        return f"{what} one of the sides has no request."
    *parts, total = layers
    longer = "longer" if total.value >= 0 else "shorter"
    words = f"{what} the {total.name} of {name} is {abs(total.value):,.1f} ms {longer}"
    if len(parts) == 1:
        return f"{words}; {parts[0].name} cannot be told apart."
    listed = "; ".join(f"{part.name} {_signed(part.value)} ms{_mark(part)}" for part in parts)
    if total.where == "inside":
        return f"{words}, which is inside the noise (~): {listed}."
    if total.where == "open":
        return f"{words}, which is {open_words(total.noise)}: {listed}."
    most = max(parts, key=lambda part: part.value if total.value >= 0 else -part.value)
    return f"{words}: {listed}. Most of it is {most.name}{' (noise unknown)' if total.where == 'unknown' else ''}."


def _signed(value: float) -> str:
    """One decimal with its sign; what rounds to zero has no sign of its own."""
    return f"{round(value, 1) + 0.0:+,.1f}"


def _mark(change: Change) -> str:
    return MARKS[change.where]


def stacked(frame: Frame, found: Boundaries, choices: Sequence[tuple[str, Choice]]) -> tuple[Answer, Figure]:
    """Mean stages of every side, one bar per side and choice of requests; the rows hold the differences."""
    bars: list[str] = []
    means: list[np.ndarray] = []
    rows: list[dict[str, object]] = []
    for words, choose in choices:
        groups = [found.group(index, choose) for index in range(len(frame.sides))]
        for side, own in zip(frame.sides, groups, strict=True):
            if own.n:
                bars.append(f"{words} · {side.role.name}")
                means.append(own.means)
        compared: list[tuple[int, Side | None]] = [*enumerate(frame.replays, 1)]
        for index, other in compared or [(0, None)]:
            noise = found.noise(index, choose, np.eye(len(found.stages)))
            for at, stage in enumerate(found.stages):
                row: dict[str, object] = {"requests": words, "stage": stage.label, "layer": stage.layer}
                why = NOT_COMPARABLE if index in found.apart else withheld(frame, other)
                rows.append(row | _beside(other, groups[0], groups[index], at, noise[at], why))
    parts = [
        (stage.label, style.pick(COLOURS[stage.end], frame.dark), [float(own[at]) for own in means])
        for at, stage in enumerate(found.stages)
    ]
    figure = figures.stacked_shares(
        bars[::-1], [(name, colour, v[::-1]) for name, colour, v in parts], Axis("ms"), dark=frame.dark
    )
    figure["layout"]["height"] = 130 + 30 * len(bars)
    figure["layout"]["legend"] |= {"traceorder": "normal", "font": {"size": 11}}
    columns = [
        Column("requests", "Requests", pinned=True, width=105),
        Column("stage", "Stage", pinned=True, width=220),
        Column("layer", "Layer", width=70),
        Column("measured_ms", "Measured (ms)", "%.2f", width=100),
        Column("side", "Compared", width=90),
        Column("replay_ms", "Replay (ms)", "%.2f", width=90),
        Column("change_ms", "Replay - measured (ms)", "%+.2f", width=155),
        Column("state", "State", width=150),
        Column("measured_n", "n measured", "%d", behind=True),
        Column("replay_n", "n replay", "%d", behind=True),
    ]
    table = pa.table(
        {
            column.name: pa.array(
                [row.get(column.name) for row in rows],
                pa.string() if not column.format else pa.int64() if column.format == "%d" else pa.float64(),
            )
            for column in columns
        }
    )
    n = {side.run_id: found.counts[index] for index, side in enumerate(frame.sides)}
    words = (
        f"From dispatch on the stages of a request sum to its {METRICS[found.until].label}. The way to the engine and "
        "the wait for the running pass are told apart as docs/metrics.md says. Noise: the largest deviation of a "
        "repeat, and of less than three repeats what redrawing lanes gives; without any, that alone."
    )
    empty = "No request of this population and phase has every boundary."
    return Answer(table, found.sql, columns, n, words, empty=empty), figure


def withheld(frame: Frame, side: Side | None) -> str:
    """What stands in place of a difference of an unlike pair; empty where it may be shown."""
    return WITHHELD if side is not None and side.regime and not frame.acknowledged else ""


def _beside(side: Side | None, left: Group, right: Group, at: int, noise: Noise | None, why: str) -> dict[str, object]:
    """One stage of the measured run beside that of a replay; where ``why`` says so, values alone."""
    row: dict[str, object] = {"measured_ms": float(left.means[at]) if left.n else None, "measured_n": left.n}
    if side is None:
        return row
    change = float(right.means[at] - left.means[at]) if left.n and right.n and not why else None
    return row | {
        "side": side.role.name,
        "replay_ms": float(right.means[at]) if right.n else None,
        "replay_n": right.n,
        "change_ms": change,
        "state": why or judged_change(change, noise),
    }


def splits(found: Boundaries, by: str) -> list[tuple[str, Choice]]:
    """Choices of requests by role, turn depth or input length that the measured side has any of."""
    if by == "role":
        parts = [(name, found.bucket("agent_depth", low, high)) for name, low, high in _ROLES]
    else:
        edges = EDGES[by]
        ends = [*edges[1:], None]
        parts = [
            (bucket_label(by, low, high), found.bucket(by, low, high)) for low, high in zip(edges, ends, strict=True)
        ]
    return [(name, choose) for name, choose in parts if found.group(0, choose).n]


def turns(frame: Frame, store: Store, found: Boundaries, side: Side) -> tuple[Answer, list[str]]:
    """The shared source-turns with the largest difference, split by layer; their names for a link."""
    index = frame.sides.index(side)
    if index in found.apart:
        return Answer(pa.table({}), not_recorded=f"Not comparable: {found.apart[index]}"), []
    shared = found.turns(index, frame.population, TOP)
    layers = found.single_layers
    sums = np.array(list(layers.values())).reshape(len(layers), len(found.stages))
    changes = (shared.replay - shared.measured) @ sums.T
    asked = shared.members.tolist()
    known = store.query("turn_names", {"members": asked}, runs={"run": frame.measured.run_id}, row_cap=None)
    named = dict(zip(known.table.column("member").to_pylist(), known.table.column("turn").to_pylist(), strict=True))
    names = [named[member] for member in asked]
    own = sums.sum(axis=0)
    data: dict[str, pa.Array] = {
        "turn": pa.array(names, pa.string()),
        "measured_ms": pa.array(shared.measured @ own),
        "replay_ms": pa.array(shared.replay @ own),
        "change_ms": pa.array(changes.sum(axis=1)),
    }
    data |= {layer: pa.array(changes[:, at]) for at, layer in enumerate(layers)}
    data["input_tokens"] = pa.array(shared.input_tokens)
    label = METRICS[found.until].label
    columns = [
        Column("turn", "Source-turn", pinned=True),
        Column("measured_ms", f"{label}, measured (ms)", "%.1f"),
        Column("replay_ms", f"{label}, replay (ms)", "%.1f"),
        Column("change_ms", "Replay - measured (ms)", "%+.1f"),
        *(Column(layer, f"{layer} (ms)", "%+.1f") for layer in layers),
        Column("input_tokens", "Input (tokens)", "%d"),
    ]
    n = {frame.measured.run_id: shared.n, side.run_id: shared.n}
    empty = "The two sides share no source-turn with every boundary."
    words = "Replay less measured by layer; together the difference of the turn. A single turn has no noise of its own."
    return Answer(pa.table(data), f"{shared.sql}\n\n{known.sql}", columns, n, words, empty=empty), names
