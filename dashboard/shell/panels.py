"""The panels beside the pair bar: the link of this view, and this page as Markdown."""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from dashboard import widgets
from dashboard.charts.panel.copying import copy_button
from dashboard.charts.records import saved_views
from dashboard.sharing.comment import Shown
from dashboard.view import PARAMS


def drawn() -> None:
    """The panel with what charts leave out; a legend cannot hold that, since a link does not know of it."""
    hidden = st.session_state.get("hide", st.query_params.get_all("hide"))
    places = PARAMS["hide"].choices[: 1 + len(st.session_state.get("r") or ())]
    with st.popover(
        f"Lines ({len(hidden)} hidden)" if hidden else "Lines",
        icon=":material/visibility:",
        key="lines",
        type="tertiary",
        width="content",
        help="Which runs charts draw; part of the link",
    ):
        widgets.control("hide", options=[one for one in PARAMS["hide"].choices if one in places or one in hidden])


def share(page: str) -> None:
    """The panel with the permalink, and the saved views."""
    panel = st.popover("Link", icon=":material/link:", key="share", on_change="rerun", help="Link to exactly this view")
    if panel.open:
        with panel:
            st.caption("Restores this view on any gapscope whose store holds these runs.")
            link = widgets.permalink(page)
            st.code(link, language=None, wrap_lines=True)
            saved_views.form(widgets.roots(), link)
            saved_views.newest(widgets.roots(), widgets.held(), widgets.base_url())


def copy() -> DeltaGenerator | None:
    """The panel with this page as Markdown; None while it is closed."""
    panel = st.popover(
        "Copy", icon=":material/content_copy:", key="copy", on_change="rerun", help="This page as Markdown for a review"
    )
    return panel if panel.open else None


def comment(panel: DeltaGenerator, shown: Shown) -> None:
    """What the page drew, for a review comment."""
    text = shown.page_comment()
    with panel, st.container(width=620):
        copy_button("Copy as Markdown", text, "copy-page")
        st.caption("Verdict in one line, permalink, identity of each run, and what this page drew.")
        st.code(text, "markdown", height=380)
