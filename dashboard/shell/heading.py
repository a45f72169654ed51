"""What heads a page: its title, and the pair bar as text on paper."""

from __future__ import annotations

import streamlit as st

from dashboard import view, widgets
from dashboard.frame import escape
from dashboard.view import PARAMS


def title(page: str) -> None:
    """The one heading of the first level."""
    with st.container(key="title"):
        st.html(f"<h1>{view.PAGES[page]}</h1>")


def printed(page: str) -> None:
    """The choices of the pair bar and the link of the view, which stand on paper instead of the controls."""
    chosen = [st.session_state["m"], *(st.session_state.get("r") or ())]
    runs = [
        f":{role.word}[{role.glyph} {role.name}] {escape(run_id)}"
        for role, run_id in zip(widgets.pair_roles(chosen), chosen, strict=False)
    ]
    population, estimator, window = widgets.scope()
    scope = [
        f"population: {population.words}",
        f"estimator: {PARAMS['est'].say(estimator)}",
        f"window of rates: {PARAMS['win'].say(window)}",
    ]
    with st.container(key="printed", gap=None):
        st.markdown("  \n".join([" · ".join(runs), " · ".join(scope), f":small[{escape(widgets.permalink(page))}]"]))
