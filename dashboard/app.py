"""Entry point of the dashboard: navigation, and the pair bar on top of every page."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas  # noqa: F401  pyarrow imports it at the first array it reads: better here than behind a first control
import streamlit as st
from PIL import Image
from streamlit.delta_generator import DeltaGenerator

from dashboard import pairs, view, widgets
from dashboard.charts import heading, outcome_bar, saved_views
from dashboard.charts.copying import copy_button
from dashboard.charts.style import ROLES, Role
from dashboard.frame import escape
from dashboard.queries.identity import identity, repeats
from dashboard.serving.gate import require_login
from dashboard.sharing.comment import Shown
from dashboard.sheet import STYLE
from engine.errors import GapscopeError


@st.cache_resource(show_spinner=False)
def _freeze() -> None:
    """Take the libraries out of the garbage collector's sight: Streamlit collects after every run of this script."""
    gc.collect()
    gc.freeze()


@st.cache_resource(show_spinner=False)
def _icon() -> Image.Image:
    """Two bars of unequal height in the colours of the two sides; drawn here, as nothing is fetched."""
    image = Image.new("RGBA", (32, 32))
    image.paste("#0072B2", (4, 6, 14, 30))
    image.paste("#D55E00", (18, 12, 28, 30))
    return image


@st.cache_resource(show_spinner=False)
def _logo() -> Image.Image:
    """The mark with room to its right, as a logo is scaled by its height."""
    wide = Image.new("RGBA", (64, 32))
    wide.paste(_icon(), (0, 0))
    return wide


def main() -> None:
    """One run of the script."""
    st.set_page_config(
        page_title="gapscope", page_icon=_icon(), layout="wide", initial_sidebar_state=210, menu_items={"about": ABOUT}
    )
    _freeze()
    st.html(STYLE)
    st.logo(_logo(), size="small")
    require_login()
    page = widgets.navigation()
    name = page.url_path or view.DEFAULT_PAGE
    try:
        with widgets.store().steady():  # the files of the store are looked at once per run of the script
            _page(page, name)
    except GapscopeError as error:
        st.error(escape(str(error)))


def _page(page: Any, name: str) -> None:
    """The pair bar, and the page below it."""
    widgets.open_link(name)
    again = widgets.join_finished()
    widgets.keep_shared(name)
    widgets.look()
    widgets.say_absent(name)
    heading.title(name)
    shown = Shown(widgets.store(), view.PAGES[name], partial(widgets.permalink, name), _contract)
    st.session_state["_shown"] = shown
    copying = _pair_bar(name)
    if again:
        st.rerun()
    try:
        page.run()
    finally:
        widgets.remember_view(name)  # a page that stops early shows something, too
        if copying:
            _comment(copying, shown)


def _pair_bar(page: str) -> DeltaGenerator | None:
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
    replay_options = _with_absent([run_id for run_id in known if run_id != asked_m], asked_r)
    with st.container(key="pairbar", gap="xsmall"):
        left, pin, right, keep = st.columns([2.5, 0.95, 4.9, 1.1], vertical_alignment="bottom", gap="small")
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
            _share(page)
            copying = _copy()
    _titles()
    heading.printed(page)
    chosen = [st.session_state["m"], *(st.session_state.get("r") or ())]
    if not widgets.unusable(chosen[0], found):
        _outcomes(chosen)
        _not_like_for_like(chosen[0], widgets.usable_replays(chosen, found))
    return copying


def _with_absent(known: list[str], asked: Sequence[str]) -> list[str]:
    return known + [run_id for run_id in asked if run_id and run_id not in known]


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


def _share(page: str) -> None:
    panel = st.popover("Link", icon=":material/link:", key="share", on_change="rerun", help="Link to exactly this view")
    if panel.open:
        with panel:
            st.caption("Restores this view on any gapscope whose store holds these runs.")
            link = widgets.permalink(page)
            st.code(link, language=None, wrap_lines=True)
            saved_views.form(widgets.roots(), link)
            saved_views.newest(widgets.roots(), widgets.held(), widgets.base_url())


def _copy() -> DeltaGenerator | None:
    """The panel with this page as Markdown; None while it is closed."""
    panel = st.popover(
        "Copy", icon=":material/content_copy:", key="copy", on_change="rerun", help="This page as Markdown for a review"
    )
    return panel if panel.open else None


def _comment(panel: DeltaGenerator, shown: Shown) -> None:
    """What the page drew, for a review comment."""
    text = shown.page_comment()
    with panel, st.container(width=620):
        copy_button("Copy as Markdown", text, "copy-page")
        st.caption("Verdict in one line, permalink, identity of each run, and what this page drew.")
        st.code(text, "markdown", height=380)


def _contract() -> str:
    """The acceptance contract on screen."""
    return str(st.session_state.get("gates") or "")


def _titles() -> None:
    """The titles of the runs in their colours: the legend of the whole page."""
    known = {entry.run_id: entry.title for entry in widgets.entries()}
    words: list[str] = []
    chosen = [st.session_state["m"], *(st.session_state.get("r") or ())]
    for one, run_id in zip(widgets.pair_roles(chosen), chosen, strict=False):
        title = known.get(run_id, "not in this store")
        pinned = f" :{one.word}-badge[:material/keep: pinned baseline]" if st.session_state["pin"] and not words else ""
        words.append(f":{one.word}[{one.glyph} {one.name}] {escape(title)}{pinned}")
    st.markdown(f":small[{' · '.join(words)}]")


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


ABOUT = "gapscope: which part of the measured LLM serving path does this replay misrepresent?"

if __name__ == "__main__":
    main()
