"""One cell per candidate: value, gap and what the noise says of it, short enough for four of them side by side."""

from __future__ import annotations

from dashboard.charts import style
from dashboard.charts.answer import Column
from dashboard.compare.noise import INSIDE, OUTSIDE, UNKNOWN
from dashboard.compare.rows import NEARLY, REPEAT
from dashboard.frame import Side

READING = (
    "Value, gap, and what the noise says of it: better, worse or differs is outside of it, ~ inside, open beyond too "
    "few repeats. Noise, counts and what each rests on are under Rows"
)
_SHORT = {INSIDE: "~", OUTSIDE: "outside", UNKNOWN: "noise?", REPEAT: ""}


def column(name: str, side: Side, width: int = 145) -> Column:
    """The column of a candidate's cells."""
    return Column(name, side.role.name.capitalize(), help=READING, width=width)


def cell(value: str, change: str, state: str, base: str = "") -> str:
    """What a cell says; ``base`` is the measured value, where each pair has its own. Unknown texts are empty."""
    told = f"{base} → {value or '–'}" if base else value or "–"
    judged = short(state) if value else ""
    if judged.startswith(NEARLY):  # it says how large the gap is
        change = ""
    beside = " ".join(one for one in (change, judged) if one)
    return f"{told} · {beside}" if beside else told


def short(state: str) -> str:
    """A state as a word or a sign: ``dashboard.compare.judged`` has them whole."""
    if state.startswith("beyond "):
        return "open"
    words, _, noise = state.partition(", ")
    if noise:
        return words if noise == OUTSIDE else f"{words}, {_SHORT.get(noise, noise)}"
    return _SHORT.get(state, state)


def number(value: float | None, decimals: int) -> str:
    """A value as text; empty where it is unknown."""
    return "" if value is None else style.fixed(value, decimals)


def signed(value: float | None, decimals: int = 1, unit: str = "") -> str:
    """A change as text with its sign; empty where it is unknown. What rounds to zero has no sign of its own."""
    return "" if value is None else f"{round(value, decimals) + 0.0:+,.{decimals}f}{unit}"
