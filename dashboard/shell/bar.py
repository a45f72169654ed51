"""The pair bar on top of every page: which runs, which requests, and what both have to say about themselves."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from dashboard import pairs, view, widgets
from dashboard.charts.comparison import outcome_bar
from dashboard.charts.style import ROLES, Role
from dashboard.frame import cut, escape
from dashboard.queries.identity import identity, repeats
from dashboard.shell import heading, panels

TITLE_CHARS = 48
"""Of each title on the line of titles, where two runs stand in the bar."""


def pair_bar(page: str) -> DeltaGenerator | None:
    """Measured run, replays, population, phase, estimator and window; set once, held on all pages.

    Returns the panel for the page as Markdown where it is open: what it holds is known after the page ran.
    """
    found = widgets.entries()
    known = [e.run_id for e in pairs.comparable(found)]
    if not known:
        return None
    first = pairs.default_measured(widgets.store(), found) or known[0]
    asked_m = st.session_state.get("m") or (st.query_params.get("m") or first)
    asked_r = st.session_state.get("r", st.query_params.get_all("r"))
    measured_options = _with_absent(known, [asked_m])
    linked = st.query_params.get_all("r")  # after Back, that of another measured run: a run that is no choice is lost
    replay_options = _with_absent([run_id for run_id in known if run_id != asked_m], [*asked_r, *linked])
    with st.container(key="pairbar", gap="xsmall"):
        left, pin, right, keep = st.columns([2.25, 0.75, 6.1, 0.9], vertical_alignment="bottom", gap="xsmall")
        with pin:
            pinned = widgets.control("pin")
        with left:
            widgets.control(
                "m",
                options=measured_options,
                default=first,
                flat=False,
                disabled=pinned,
                on_change=widgets.new_measured,
            )
        with keep:
            st.checkbox(
                "Keep",
                key="_keep",
                help="Keep these candidates when another measured run is chosen",
                disabled=pinned or not asked_r,
            )
        with right:
            widgets.control(
                "r",
                options=replay_options,
                default=pairs.default_replays(widgets.store(), asked_m, found),
                max_selections=view.MAX_REPLAYS,
                placeholder="choose a replay",
                on_change=widgets.new_pair,
            )
        with st.container(horizontal=True, gap="small", vertical_alignment="bottom"):
            widgets.control("pop", width=165, flat=False)
            if st.session_state.get("pop") == "matched_near":
                widgets.control("tol", width=110)
            widgets.control("phase", width=105, flat=False)
            widgets.control("est", width=115, flat=False)
            widgets.control("win", width=150, flat=False)
            _one_click()
            panels.share(page)
            copying = panels.copy()
    chosen = [st.session_state["m"], *(st.session_state.get("r") or ())]
    with st.container(gap=None):
        _titles()
        heading.printed(page)
        if not widgets.unusable(chosen[0], found):
            _outcomes(chosen)
    if not widgets.unusable(chosen[0], found):
        _not_like_for_like(chosen[0], widgets.usable_replays(chosen, found))
    return copying


def _with_absent(known: list[str], asked: Sequence[str]) -> list[str]:
    return known + [run_id for run_id in dict.fromkeys(asked) if run_id and run_id not in known]


def _swap() -> None:
    replays = list(st.session_state.get("r") or ())
    if replays:
        st.session_state["m"], replays[0] = replays[0], st.session_state["m"]
        st.session_state["r"] = replays
        st.session_state["ack"] = False


def _one_click() -> None:
    st.button(
        "Swap",
        icon=":material/swap_horiz:",
        key="swap",
        on_click=_swap,
        help="Swap the measured run and the first replay",
        disabled=not st.session_state.get("r") or st.session_state["pin"],
    )
    measured = st.session_state["m"]
    found = [] if pairs.absence(measured, widgets.entries()) else repeats(widgets.store(), measured)
    shown = [run_id for run_id in found if run_id in (st.session_state.get("r") or ())]
    st.button(
        "Repeat",
        icon=":material/repeat:",
        key="repeat",
        on_click=widgets.choose_candidate,
        args=(found[0] if found else "",),
        disabled=not found or bool(shown),
        help="Add the repeat of the measured run as a candidate" if found else "The store holds no repeat of this run",
    )


def _titles() -> None:
    """The titles of the runs in their colours, on one line: the legend of the whole page; the help holds cut ones."""
    known = {entry.run_id: entry.title for entry in widgets.entries()}
    words: list[str] = []
    whole: list[str] = []
    chosen = [st.session_state["m"], *(st.session_state.get("r") or ())]
    for one, run_id in zip(widgets.pair_roles(chosen), chosen, strict=False):
        title = known.get(run_id, "not in this store")
        pinned = f" :{one.word}-badge[:material/keep: pinned baseline]" if st.session_state["pin"] and not words else ""
        short = cut(title, TITLE_CHARS if len(chosen) < 3 else 2 * TITLE_CHARS // len(chosen))
        words.append(f":{one.word}[{one.glyph} {one.name}] {escape(short)}{pinned}")
        whole += [f"{one.name}: {escape(title)}"] if short != title else []
    with st.container(horizontal=True, key="titles", gap="small", vertical_alignment="center", wrap=False):
        st.markdown(f":small[{' · '.join(words)}]", help="  \n".join(whole) or None, width="stretch")
        panels.drawn()


def _outcomes(chosen: Sequence[str]) -> None:
    """What became of the requests of every side, with the way to the list of those that did not succeed."""
    named = dict(zip(ROLES, widgets.pair_roles(chosen), strict=True))
    usable = widgets.usable_replays(chosen, widgets.entries())
    sides = [(named[ROLES[0]], chosen[0]), *((named[own], run_id) for own, run_id in usable)]
    with st.container(horizontal=True, key="outcomes", gap="small", vertical_alignment="center", wrap=False):
        outcome_bar.show(widgets.store(), sides, st.session_state["phase"], widgets.dark())
        widgets.cohort_link()


def _not_like_for_like(measured: str, replays: Sequence[tuple[Role, str]]) -> None:
    """Name the regime fields that differ, and let the reader say that this is known."""
    lines = []
    for side, run_id in replays:
        for diff in identity(widgets.store(), measured, run_id).regime_differs:
            left, right = (escape(str(f.value)) if f else "unknown" for f in (diff.left, diff.right))
            lines.append(
                f"**Not like for like**: {diff.label} is {left} in the measured run and {right} in "
                f":{side.word}[{side.glyph} {side.name}]. Gaps are withheld until acknowledged."
            )
    if lines:
        with st.container(border=True, key="regime", gap="xsmall"):
            for line in lines:
                st.markdown(line)
            widgets.control("ack")
