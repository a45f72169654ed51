"""The outcome bar under the pair bar: what became of the requests of every side, so that failures are seen at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import streamlit as st

from dashboard.charts import style
from dashboard.charts.style import Role
from dashboard.metrics import PHASES
from dashboard.queries.outcomes import OUTCOMES, Outcomes, outcomes
from dashboard.store import Store

ALWAYS = ("ok", "zero_output", "error", "canceled", "in_flight")
"""Classes that the bar names at zero as well; the others only where a request is of them."""
WORDS = OUTCOMES | {"in_flight": "in flight or unknown"}
COLOURS: dict[str, tuple[str, str]] = {
    "ok": ("#8FA3B0", "#6C7F8C"),
    "zero_output": ("#D8B84F", "#D8B84F"),
    "unfinished": ("#B8860B", "#F0C75E"),
    "error": ("#B34700", "#F0A640"),
    "rejected": ("#8A2F00", "#E07B3C"),
    "canceled": ("#8A4B5C", "#DDA3B1"),
    "in_flight": ("#2A2A2E", "#F2F0EC"),
}
"""Plain successes are quiet, everything else stands out; words and numbers say the same."""
WIDTH, LEAST = 96, 4
"""Pixels of a bar, and of the class with the fewest requests in it."""
NAME = "display:inline-block;min-width:6.5rem"


@dataclass(frozen=True, slots=True)
class Tally:
    """Requests of one side that were dispatched in the phase of the bar, by class."""

    attempted: int
    counts: Mapping[str, int]
    failed: tuple[str, ...] = ()  # checks of the run that did not hold

    @property
    def said(self) -> list[str]:
        """The classes in words, in their order; what is no plain success and occurs is marked."""
        words = []
        for name, label in WORDS.items():
            count = self.counts.get(name, 0)
            if count or name in ALWAYS:
                words.append(f"{'▲ ' if count and name != 'ok' else ''}{count:,} {label}")
        return words


def tally(found: Outcomes, phase: str, failed: Sequence[str] = ()) -> Tally:
    """The classes of a run in a phase of the bar; ``all`` counts requests of an unknown phase as well."""
    phases = found.phases if phase == "all" else PHASES[phase]
    counts = {name: sum(found.count(name, one) for one in phases) for name in OUTCOMES}
    return Tally(sum(counts.values()), counts, tuple(failed))


def tallies(store: Store, run_ids: Sequence[str], phase: str) -> list[Tally | None]:
    """One tally per run; None where it recorded no requests."""
    told: list[Tally | None] = []
    for run_id in run_ids:
        found = outcomes(store, run_id)
        checks = [check.check for check in store.bundle(run_id).qualification if check.verdict == "fail"]
        told.append(None if found.result.not_recorded else tally(found, phase, checks))
    return told


def markup(sides: Sequence[tuple[Role, Tally | None]], phase: str, dark: bool) -> str:
    """The bar as HTML, made of our own words and of numbers alone, except for names of checks, which are escaped."""
    cells = []
    for role, told in sides:
        name = f'<span style="color:{role.ink(dark)};{NAME}">{role.glyph} {role.name}</span>'
        if told is None:
            cells.append(f'<div role="listitem">{name} no requests recorded</div>')
            continue
        words = " · ".join(f"<b>{one}</b>" if one.startswith("▲") else one for one in told.said)
        failed = f" · <b>▲ failed {escape(', '.join(told.failed))}</b>" if told.failed else ""
        cells.append(
            f'<div role="listitem" style="white-space:nowrap">{name} {_segments(told, dark)} '
            f"{told.attempted:,} attempted · {words}{failed}</div>"
        )
    return (
        f'<div role="list" aria-label="Outcomes of requests dispatched in {phase}" style="display:flex;'
        f'flex-wrap:wrap;gap:0 1.4rem;font-size:0.8rem;line-height:1.5">{"".join(cells)}</div>'
    )


def _segments(told: Tally, dark: bool) -> str:
    """The classes as one bar; a class that occurs can be seen."""
    known = [(name, count) for name, count in told.counts.items() if count]
    if not known:
        return ""
    rest = WIDTH - LEAST * len(known)
    parts = []
    for name, count in known:
        width = LEAST + rest * count / told.attempted
        colour = style.pick(COLOURS[name], dark)
        parts.append(f'<span style="display:inline-block;height:8px;width:{width:.1f}px;background:{colour}"></span>')
    return f'<span aria-hidden="true">{"".join(parts)}</span>'


def show(store: Store, sides: Sequence[tuple[Role, str]], phase: str, dark: bool) -> None:
    """Draw the bar of these runs."""
    told = tallies(store, [run_id for _, run_id in sides], phase)
    words = {"all": "any phase", "warmup": "warm-up", "cooldown": "cool-down"}.get(phase, phase)
    st.html(markup([(role, one) for (role, _), one in zip(sides, told, strict=True)], words, dark), width="stretch")
