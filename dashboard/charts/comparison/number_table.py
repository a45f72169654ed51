"""The table of numbers of a measured run and of every candidate beside it: values, gaps, noise, states, counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from dashboard.charts.answer import Answer, Column
from dashboard.charts.comparison import cells
from dashboard.compare import Row, compare_number, judged
from dashboard.compare.nearest import REPEAT_LABELS, TIED, Nearest, nearest, short_names
from dashboard.compare.numbers import Key
from dashboard.frame import Frame, Side, header
from dashboard.metrics import METRICS
from dashboard.queries import passes
from dashboard.queries.identity import repeats
from dashboard.queries.totals import totals
from dashboard.samples import sample_sql
from dashboard.store import Store

DECIMALS = {"ms": 1, "%": 2, "count": 0, "requests": 2, "1/s": 3, "tok/s": 1, "tokens": 1}
WITHHELD = "not like for like"
APART = "not comparable"
Candidates = Sequence[tuple[Side, Sequence[Row]]]
"""The rows of every candidate; all have the same numbers in the same order."""

_NUMBER = (
    Column("metric", "Metric", pinned=True, width=110),
    Column("statistic", "Statistic", pinned=True, width=85),
    Column("unit", "Unit", width=50),
    Column("better", "Better", help="Which way is better; neither where a number has no better side", width=60),
)
_NOISE = (
    Column("low", "Noise from (%)", "%+.1f", "where the measured side may lie, relative to its value", width=95),
    Column("high", "Noise to (%)", "%+.1f", width=85),
)
_GAP = "{name} / measured - 1, on unrounded values"
_STATE = "Read from the side that is compared; ~ is inside the noise, a repeat of the measured run is the noise"


def table(frame: Frame, store: Store, found: Candidates, n: Mapping[str, int | None]) -> Answer:
    """One row per number with every candidate; without an acknowledgement unlike pairs have values, but no gaps.

    The downloads hold the unrounded values and differences as well.
    """
    keys = [row.key for row in found[0][1]]
    told = one(frame, found[0]) if len(found) == 1 else several(frame, found)
    words = header(frame, "gap = replay / measured - 1. ") + " ".join(
        f"{label}: {definition}." for label, definition in {key.label: key.definition for key in keys}.items()
    )
    if len(found) > 1:
        words += (
            " Nearest: nearer than every other candidate to all values inside the noise, by more than half its width."
        )
    columns, rows = told
    return Answer(_table(rows, columns), sql_of(frame, store, [side for side, _ in found], keys), columns, n, words)


def number_rows(frame: Frame, store: Store, keys: Sequence[Key]) -> list[tuple[Side, list[Row]]]:
    """These numbers of the measured run beside every candidate, all with the same noise."""
    measured = frame.measured.run_id
    same = tuple(repeats(store, measured))
    found = []
    for side in frame.replays:
        pair = (measured, side.run_id)
        rows = [compare_number(store, pair, key, frame.population, frame.estimator, same) for key in keys]
        found.append((side, rows))
    return found


def one(frame: Frame, found: tuple[Side, Sequence[Row]]) -> tuple[list[Column], list[dict[str, Any]]]:
    """Columns and rows of a single candidate."""
    side, rows = found
    columns = [
        *_NUMBER,
        Column("measured", "Measured", "%.6g", width=85),
        Column("replay", "Replay", "%.6g", width=85),
        Column("gap", "Gap (%)", "%+.1f", _GAP.format(name="replay"), width=75),
        Column("state", "State", help=_STATE, width=205),
        *_NOISE,
        Column("difference", "Difference", "%+.4g", "replay - measured, in the unit; of a share in points", width=85),
        Column("measured_n", "n measured", "%d", width=85),
        Column("replay_n", "n replay", "%d", width=75),
        Column("reason", "Rests on", width=330),
    ]
    hidden = withheld(frame, side)
    told = []
    for row in rows:
        own = _of(row, hidden)
        told.append(
            _measured(row, hidden)
            | {name: own[name] for name in ("gap", "difference", "state", "reason")}
            | {"replay": own["value"], "replay_n": own["n"], "replay_unrounded": own["unrounded"]}
        )
    return columns, told


def several(frame: Frame, found: Candidates) -> tuple[list[Column], list[dict[str, Any]]]:
    """Columns and rows of several candidates: a cell of each beside the measured value, and behind them all of it."""
    names = [f"candidate_{at}" for at in range(1, len(found) + 1)]
    own = frame.population.matched  # the members, and so the measured value, are those of each pair
    columns = [Column("number", "Number", pinned=True, width=145), Column("unit", "Unit", width=48)]
    columns += [] if own else [Column("measured", "Measured", "%.6g", width=70)]
    columns += [
        cells.column(f"{name}_cell", side, 195 if own else 139) for name, (side, _) in zip(names, found, strict=True)
    ]
    columns.append(
        Column("closest", "Nearest", width=109, help="Named where the noise leaves no doubt; ~ where it does not")
    )
    told = []
    closest = nearest_rows(frame, found)
    for at, row in enumerate(found[0][1]):
        hidden = [withheld(frame, side) for side, _ in found]
        line = _measured(row, all(hidden)) | {"nearest": said_nearest(found, closest[at])}
        line["number"] = f"{line['metric']} {line['statistic']}"
        line["closest"] = _closest(found, closest[at])
        for name, away, (_, rows) in zip(names, hidden, found, strict=True):
            values = _of(rows[at], away)
            line |= {name if key == "value" else f"{name}_{key}": value for key, value in values.items()}
            line[f"{name}_cell"] = _cell(rows[at], values, own)
        told.append(line)
    return columns + [replace(one, behind=True) for one in _behind(found, names, own)], told


def _behind(found: Candidates, names: Sequence[str], own: bool) -> list[Column]:
    """The columns that stand behind the cells of several candidates: their values, gaps, states, noise and counts."""
    columns = [column for column in _NUMBER if column.name != "unit"]
    columns.append(Column("nearest", "Nearest by name", width=170))
    for name, (side, _) in zip(names, found, strict=True):
        said = _short(side)
        if own:
            columns.append(Column(f"{name}_measured", f"Measured, beside {side.role.name}", "%.6g", width=110))
        columns += [
            Column(name, said, "%.6g", width=75),
            Column(f"{name}_gap", f"{said} gap (%)", "%+.1f", _GAP.format(name=side.role.name), width=105),
            Column(f"{name}_state", f"{said} is", help=_STATE, width=150),
        ]
    columns += _NOISE
    if not own:
        columns.append(Column("measured_n", "n measured", "%d", width=85))
    for name, (side, _) in zip(names, found, strict=True):
        columns.append(Column(f"{name}_n", f"n {side.role.name}", "%d", width=90))
        columns.append(Column(f"{name}_difference", f"{side.role.name.capitalize()} - measured", "%+.4g", width=110))
    for name, (side, _) in zip(names, found, strict=True):
        columns.append(Column(f"{name}_reason", f"{side.role.name.capitalize()}: rests on", width=300))
    return columns


def _cell(row: Row, values: Mapping[str, Any], own: bool) -> str:
    """A candidate in one cell: a difference stands in the place of a gap where the measured value is zero."""
    unit = row.key.unit
    decimals = DECIMALS.get(unit_of(unit), 2)
    change = cells.signed(values["gap"], 1, " %")
    if not change and values["difference"]:
        change = cells.signed(values["difference"], decimals)
    base = cells.number(values["measured"], decimals) if own else ""
    return cells.cell(cells.number(values["value"], decimals), change, values["state"], base)


def _closest(found: Candidates, one_: Nearest | None) -> str | None:
    """The nearest candidate by its place, or why none is."""
    if one_ is None or one_.at is None:
        return "~" if one_ is not None and one_.why == TIED else said_nearest(found, one_)
    return found[one_.at][0].role.name


def _short(side: Side) -> str:
    """What a narrow header calls a candidate."""
    return side.role.name.capitalize().replace("Candidate", "Cand.")


def competing(frame: Frame, found: Candidates) -> list[int]:
    """Places of the candidates that can be nearer than another: no repeats of the measured run, no unlike pairs."""
    return [at for at, (side, _) in enumerate(found) if side.label not in REPEAT_LABELS and not withheld(frame, side)]


def nearest_rows(frame: Frame, found: Candidates) -> list[Nearest | None]:
    """Of every number, which candidate is nearest; None where fewer than two compete."""
    places = competing(frame, found)
    if len(places) < 2:
        return [None] * len(found[0][1])
    told: list[Nearest | None] = []
    for at in range(len(found[0][1])):
        one_ = nearest([found[place][1][at] for place in places])
        told.append(one_ if one_.at is None else Nearest(one_.key, places[one_.at]))
    return told


def said_nearest(found: Candidates, one_: Nearest | None) -> str | None:
    """The nearest candidate by name, or why none is."""
    if one_ is None:
        return None
    return one_.why if one_.at is None else candidate_names(found)[one_.at]


def candidate_names(found: Candidates) -> list[str]:
    """What candidates are called where one is named: the place in the bar, and the name that the run has elsewhere."""
    names = short_names([side.run_id for side, _ in found])
    return [f"{side.role.name}: {name}" for (side, _), name in zip(found, names, strict=True)]


def withheld(frame: Frame, side: Side) -> bool:
    """Whether gaps of an unlike pair are withheld until that is acknowledged."""
    return not frame.acknowledged and bool(side.regime)


def sql_of(frame: Frame, store: Store, sides: Sequence[Side], keys: Sequence[Key]) -> str:
    """The queries that the numbers of the measured run and of ``sides`` were read off, each once."""
    texts: dict[str, None] = {}
    for run in (frame.measured, *sides):
        population = frame.population_of(run)
        for metric in dict.fromkeys(key.metric for key in keys):
            if metric in METRICS:
                text = sample_sql(store, run.run_id, METRICS[metric], population)
            elif metric in ("pass_count", "pass_time"):
                text = passes.classes(store, run.run_id, population).sql
            elif "requests" in store.tables(run.run_id):  # a sweep has none
                text = totals(store, run.run_id, population).sql
            else:
                continue
            texts[f"-- {run.role.name}\n{text}"] = None
    return "\n\n".join(texts)


def _measured(row: Row, hidden: bool) -> dict[str, Any]:
    """What a row says of the number and of the measured side."""
    base = row.measured.value
    spread = row.noise if base and not hidden else None
    return {
        "metric": row.key.label,
        "statistic": row.key.statistic.replace("_", " "),
        "unit": unit_of(row.key.unit),
        "better": row.key.direction,
        "measured": rounded(base, row.key.unit),
        "measured_n": row.measured.n,
        "measured_unrounded": scaled(base, row.key.unit),
        "low": None if not spread or not base else 100 * (spread.low / base - 1),
        "high": None if not spread or not base else 100 * (spread.high / base - 1),
    }


def _of(row: Row, hidden: bool) -> dict[str, Any]:
    """What a row says of its candidate, in the units of the screen."""
    left, right = row.measured.value, row.replay.value
    apart = hidden or row.state == "not comparable" or left is None or right is None
    return {
        "value": rounded(right, row.key.unit),
        "measured": rounded(left, row.key.unit),
        "gap": None if hidden or row.gap is None else 100 * row.gap,
        "difference": None if apart else scaled((right or 0.0) - (left or 0.0), row.key.unit),
        "state": WITHHELD if hidden else judged(row),
        "n": row.replay.n,
        "reason": WITHHELD if hidden else row.reason,
        "unrounded": scaled(right, row.key.unit),
    }


def unit_of(unit: str) -> str:
    """The unit of a table: shares stand in percent, and differences of them in points of it."""
    return "%" if unit == "share" else unit


def scaled(value: float | None, unit: str) -> float | None:
    """A value in the unit of a table, unrounded."""
    return None if value is None else value * (100 if unit == "share" else 1)


def rounded(value: float | None, unit: str) -> float | None:
    """A value in the unit of a table, in its decimals."""
    told = scaled(value, unit)
    return None if told is None else round(told, DECIMALS.get(unit_of(unit), 2))


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> pa.Table:
    """The rows with the columns on screen first, and behind them what only the downloads hold."""
    shown = {column.name: column.format for column in columns}
    names = [*shown, *(name for name in rows[0] if name.endswith("_unrounded"))] if rows else [*shown]

    def kind(name: str) -> pa.DataType:
        if name.endswith("_unrounded"):
            return pa.float64()
        if not shown[name]:
            return pa.string()
        return pa.int64() if shown[name] == "%d" else pa.float64()

    return pa.table({name: pa.array([row[name] for row in rows], kind(name)) for name in names})
