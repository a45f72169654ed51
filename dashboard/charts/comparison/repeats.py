"""Run-to-run difference: a run, its repeats, the bootstrap over its lanes, and a replay against both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dashboard.charts import figures
from dashboard.charts.answer import Answer, Column
from dashboard.charts.comparison.number_table import WITHHELD, rounded, scaled, sql_of, unit_of
from dashboard.charts.figures import Axis, Figure
from dashboard.compare import Row
from dashboard.compare.noise import Noise
from dashboard.compare.numbers import Key
from dashboard.compare.repeats import Standing
from dashboard.frame import Frame, Side
from dashboard.pairs import shorten
from dashboard.queries.identity import NearRepeat
from dashboard.store import Store
from engine.identity import FieldDiff

CHARTED = [f"{metric}.{statistic}" for metric in ("ttft", "tpot", "e2e", "itl") for statistic in ("mean", "p50", "p99")]
MOST_BARS = 5
INSIDE = {"~": "inside", "same": "equal", "not comparable": "not comparable"}

_NUMBER = [
    Column("metric", "Metric", pinned=True, width=150),
    Column("statistic", "Statistic", pinned=True, width=105),
    Column("unit", "Unit", width=55),
    Column("run", "Run", "%.6g", width=85),
]
_BOOTSTRAP = [
    Column("low", "Bootstrap from (%)", "%+.1f", "where the run may lie, from its own rows drawn again", width=115),
    Column("high", "Bootstrap to (%)", "%+.1f", width=105),
]
REPEAT_COLUMNS = [
    *_NUMBER,
    Column("repeat", "Repeat", "%.6g", width=85),
    Column("difference", "Difference", "%+.6g", "repeat - run, in the unit", width=90),
    Column("gap", "Difference (%)", "%+.1f", "repeat / run - 1, on unrounded values", width=100),
    Column("inside", "In the bootstrap", width=110),
    *_BOOTSTRAP,
    Column("n_run", "n run", "%d", width=65),
    Column("n_repeat", "n repeat", "%d", width=70),
    Column("reason", "Rests on", width=300),
]
STANDING_COLUMNS = [
    *_NUMBER,
    Column("replay", "Replay", "%.6g", width=85),
    Column("gap", "Gap (%)", "%+.1f", "replay / run - 1, on unrounded values", width=75),
    Column("place", "The replay is", width=130),
    Column("spread", "Repeats, give or take (%)", "%.1f", "largest deviation of a repeat from the run", width=150),
    *_BOOTSTRAP,
]
NEAR_COLUMNS = [
    Column("run", "Run", pinned=True, width=210),
    Column("count", "Fields in the way", "%d", width=110),
    Column("fields", "Which", width=700),
]


def repeat_table(frame: Frame, store: Store, side: Side, rows: Sequence[Row], n: Mapping[str, int | None]) -> Answer:
    """Number by number: run, repeat, their difference, and whether the bootstrap of the run holds the repeat."""
    told = [
        _number(row.key, row.measured.value)
        | _bootstrap(row.noise, row.measured.value)
        | {
            "repeat": rounded(row.replay.value, row.key.unit),
            "difference": _difference(row),
            "gap": None if row.gap is None else 100 * row.gap,
            "inside": INSIDE.get(row.state, "outside" if row.noise else "unknown"),
            "n_run": row.measured.n,
            "n_repeat": row.replay.n,
            "reason": row.reason,
            "repeat_unrounded": scaled(row.replay.value, row.key.unit),
        }
        for row in rows
    ]
    words = "The interval is a bootstrap over the lanes of the run alone, so the repeat is a test of it."
    return Answer(
        _table(told, REPEAT_COLUMNS), sql_of(frame, store, [side], [row.key for row in rows]), REPEAT_COLUMNS, n, words
    )


def standing_table(
    frame: Frame, store: Store, side: Side, rows: Sequence[Standing], n: Mapping[str, int | None]
) -> Answer:
    """Number by number: the replay against the repeats and against the bootstrap; an unlike pair has no gaps."""
    withheld = not frame.acknowledged and bool(side.regime)
    told = [
        _number(row.key, row.run.value)
        | _bootstrap(row.bootstrap, row.run.value)
        | {
            "replay": rounded(row.replay.value, row.key.unit),
            "replay_unrounded": scaled(row.replay.value, row.key.unit),
            "gap": None if withheld or row.gap is None else 100 * row.gap,
            "spread": _spread(row),
            "place": WITHHELD if withheld else row.place,
        }
        for row in rows
    ]
    words = (
        "Inside the repeats: no further from the run than its farthest repeat. Inside the bootstrap: in its interval."
    )
    return Answer(
        _table(told, STANDING_COLUMNS),
        sql_of(frame, store, [side], [row.key for row in rows]),
        STANDING_COLUMNS,
        n,
        words,
    )


def gaps(
    frame: Frame, repeats: Sequence[tuple[Side, Sequence[Row]]], replays: Sequence[tuple[Side, Sequence[Standing]]]
) -> Figure:
    """Signed differences from the run: its repeats, then replays, over the bootstrap of the run."""
    by_number = {str(row.key): row for row in repeats[0][1]}
    names = [name for name in CHARTED if by_number[name].measured.value]
    labels = [f"{by_number[name].key.label} {by_number[name].key.statistic}" for name in names]
    series = [(side.role, side.name, _percent({str(r.key): r.gap for r in rows}, names)) for side, rows in repeats]
    series += [(side.role, side.name, _percent({str(r.key): r.gap for r in rows}, names)) for side, rows in replays]
    figure = figures.bars(
        labels, series[:MOST_BARS], Axis(""), Axis("difference from the run, %"), dark=frame.dark, height=300
    )
    bands = [_bootstrap(by_number[name].noise, by_number[name].measured.value) for name in names]
    figure["data"].insert(0, _band(labels, bands))
    figure["layout"]["yaxis"] |= {"zeroline": True, "zerolinewidth": 1, "ticksuffix": " %"}
    figure["layout"]["showlegend"] = True
    return figure


def _percent(found: Mapping[str, float | None], names: Sequence[str]) -> list[float | None]:
    return [None if found[name] is None else 100 * (found[name] or 0.0) for name in names]


def _band(labels: Sequence[str], bands: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    low = np.array([band["low"] or 0.0 for band in bands])
    high = np.array([band["high"] or 0.0 for band in bands])
    return {
        "type": "bar",
        "name": "bootstrap of the run",
        "x": list(labels),
        "base": low.astype(np.float32),
        "y": (high - low).astype(np.float32),
        "marker": {"color": "rgba(128,128,136,0.28)", "line": {"width": 0}},
        "width": 0.86,
        "offset": -0.43,
        "hoverinfo": "skip",
    }


def near_table(found: Sequence[NearRepeat]) -> Answer:
    """Measured runs that are no repeats, and the identity fields that keep them from it."""
    told = [
        {"run": one.run_id, "count": len(one.fields), "fields": "; ".join(_field_words(each) for each in one.fields)}
        for one in found
    ]
    words = "A repeat has every identity field the same, or unknown on both sides. Read from run.json of both runs."
    return Answer(
        _table(told, NEAR_COLUMNS), "", NEAR_COLUMNS, definition=words, empty="The store holds no other measured run."
    )


def _field_words(field: FieldDiff) -> str:
    """A field and its two values; of a mapping only the entries that differ."""
    left, right = (side.value if side else None for side in (field.left, field.right))
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        names = [name for name in dict.fromkeys((*left, *right)) if left.get(name) != right.get(name)]
        return ", ".join(f"{field.label} {name}: {_said(left.get(name))} → {_said(right.get(name))}" for name in names)
    return f"{field.label}: {_said(left)} → {_said(right)}"


def _said(value: Any) -> str:
    return "unknown" if value is None else shorten(str(value), 60)


def _number(key: Key, value: float | None) -> dict[str, Any]:
    return {
        "metric": key.label,
        "statistic": key.statistic.replace("_", " "),
        "unit": unit_of(key.unit),
        "run": rounded(value, key.unit),
        "run_unrounded": scaled(value, key.unit),
    }


def _difference(row: Row) -> float | None:
    if row.measured.value is None or row.replay.value is None:
        return None
    return rounded(row.replay.value - row.measured.value, row.key.unit)


def _bootstrap(noise: Noise | None, value: float | None) -> dict[str, float | None]:
    relative = noise.relative(value) if noise and value else None
    return {"low": 100 * relative[0], "high": 100 * relative[1]} if relative else {"low": None, "high": None}


def _spread(row: Standing) -> float | None:
    relative = row.repeats.relative(row.run.value) if row.repeats and row.run.value else None
    return 100 * relative[1] if relative else None


def _table(told: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> pa.Table:
    """The rows with the columns on screen first, and behind them what only the downloads hold."""
    kinds = {
        column.name: pa.int64() if column.format == "%d" else pa.float64() if column.format else pa.string()
        for column in columns
    }
    kinds |= {name: pa.float64() for name in (told[0] if told else ()) if name.endswith("_unrounded")}
    return pa.table({name: pa.array([one[name] for one in told], kind) for name, kind in kinds.items()})
