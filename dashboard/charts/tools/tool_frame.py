"""Which runs the Cross-tool page lays side by side, and the frame that its charts are about."""

from __future__ import annotations

from functools import partial

import streamlit as st

from dashboard import widgets
from dashboard.charts.style import TOOLS
from dashboard.compare import pair_label
from dashboard.compare.tools import KINDS, SideBySide, side_by_side
from dashboard.frame import Frame, Side, escape
from dashboard.metrics import MAX_TOOLS
from dashboard.queries.identity import identity


def tool_frame() -> tuple[Frame, SideBySide]:
    """The runs that are chosen, those of the pair bar at first; absent and altered ones are named and left out.

    Stops the page, with a sentence, where nothing is chosen.
    """
    widgets.entered()
    found = widgets.entries()
    known = [one.run_id for one in found if one.state == "ok" and one.kind in KINDS]
    if not known:
        st.info(
            "There are no runs to lay side by side in this store yet: import what several tools wrote on the Runs page."
        )
        st.stop()
    first = _first(known)
    asked = st.session_state.get("tools", [*st.query_params.get_all("tools"), *first])
    chosen = widgets.control(
        "tools",
        options=list(dict.fromkeys([*known, *(one for one in asked if one)])),
        default=first,
        max_selections=MAX_TOOLS,
        placeholder="choose runs of one server",
    )
    usable = [one for one in chosen if not _said(widgets.unusable(one, found))]
    if not usable:
        st.info("Choose runs above: what became of their requests, what their numbers mean, and why they differ.")
        st.stop()
    population, estimator, window = widgets.scope()
    if population.matched:
        st.caption("No request is joined across tools: matched populations are taken whole here.")
    made = side_by_side(widgets.store(), usable, population, estimator, window)
    sides = tuple(_side(made, place) for place in range(len(made.runs)))
    link = partial(widgets.permalink, "tools")
    return Frame(sides[0], sides[1:], made.population, estimator, window, True, widgets.dark(), link), made


def _first(known: list[str]) -> list[str]:
    """What stands in the pair bar; without one, whatever there is."""
    paired = [st.session_state.get("m"), *(st.session_state.get("r") or ())]
    return list(dict.fromkeys(one for one in paired if one)) or known[:MAX_TOOLS]


def _said(problem: str | None) -> bool:
    if problem:
        st.error(escape(problem))
    return bool(problem)


def _side(made: SideBySide, place: int) -> Side:
    """A run as it stands here: its letter and its tool, seen from the first."""
    first, run = made.runs[0], made.runs[place]
    place_words = f"{run.letter}: {run.tool}"
    if not place:
        return Side(TOOLS[0], run.bundle, said=place_words)
    store = widgets.store()
    kinds = {first.bundle.kind, run.bundle.kind}
    label = pair_label(store, first.run_id, run.run_id) if kinds == {"measured", "replay"} else ""
    diffs = identity(store, first.run_id, run.run_id).rows
    coverage = widgets.inside(run.run_id)
    return Side(TOOLS[place], run.bundle, label, diffs, coverage, place_words)
