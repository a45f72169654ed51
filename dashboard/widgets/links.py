"""Links from one page to another that keep the pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from dashboard.charts.answer import Answer
from dashboard.frame import escape
from dashboard.widgets.navigation import PAGES_FOLDER


def cohort_link() -> None:
    """A link to the Cohort page, which lists the requests that did not succeed."""
    st.page_link(
        PAGES_FOLDER / "cohort.py",
        label="Outcomes",
        icon=":material/checklist:",
        help="Cohort: the requests that did not succeed, one by one",
    )


def request_link(turn: str, label: str = "") -> None:
    """A link to the Request page with a source-turn (``view.turn_key``) chosen; the pair bar stays as it is."""
    st.page_link(
        PAGES_FOLDER / "request.py",
        label=escape(label or turn),
        icon=":material/timeline:",
        query_params={"turn": turn},
        help="This source-turn on both sides",
    )


def turn_links(selection: Any, shown: Answer) -> None:
    """Links to the Request page for the selected rows of a table that has a column ``turn``."""
    if not selection or "turn" not in shown.rows.column_names:
        return
    with st.container(horizontal=True, gap="small"):
        for row in selection["selection"]["rows"]:
            if row < shown.rows.num_rows and (turn := shown.rows.column("turn")[row].as_py()):
                request_link(turn, f"Open {turn} on the Request page")


def turn_chooser(key: str, turns: Sequence[str]) -> Callable[[], None]:
    """A callback for a click on a row of the table drawn under ``key``: choose the source-turn of that row."""

    def choose() -> None:
        rows = st.session_state[f"table-{key}"]["selection"]["rows"]
        if rows and rows[0] < len(turns):
            st.session_state["turn"] = turns[rows[0]]

    return choose
