"""The acceptance contract on a page: its text, and the same row by row."""

from __future__ import annotations

from typing import Literal

import streamlit as st

from dashboard import widgets
from dashboard.compare import contract
from dashboard.compare.contract import Row
from dashboard.compare.gates import Gate
from dashboard.frame import escape
from engine.errors import GapscopeError

EXAMPLE = "e.g. ttft.mean<=10%  tpot.mean<=10%  ttft.p90<=15%  hit_ratio.tokens<=1pp"
MOST_ROWS = 20
"""Gates that are edited row by row; the text takes more."""


def edit() -> list[Gate]:
    """The contract: its text, a panel with its rows, and what is wrong with it, in red. Its gates, none where wrong."""
    with st.container(horizontal=True, vertical_alignment="bottom", key="contract"):
        text = widgets.control("gates", placeholder=EXAMPLE, width="stretch")
        panel = st.popover("Rows", key="contract-rows", on_change="rerun", help="Edit the contract gate by gate")
    if panel.open:
        with panel:
            _rows(contract.rows(text)[:MOST_ROWS])
    try:
        return contract.parse_gates(text)
    except GapscopeError as error:
        st.error(escape(str(error)))
        return []


def _rows(rows: list[Row]) -> None:
    if not rows:
        st.caption("No gate yet: nothing is asked of a replay.")
    for index, row in enumerate(rows):
        label: Literal["visible", "collapsed"] = "visible" if index == 0 else "collapsed"
        with st.container(horizontal=True, vertical_alignment="bottom", key=f"gate-{index}", wrap=False):
            for part, value in (("number", row.number), ("bound", row.bound), ("population", row.population)):
                st.session_state[_key(index, part)] = value  # the text may have changed
            st.selectbox(
                "Number",
                list(dict.fromkeys([row.number, *contract.NUMBERS])),
                key=_key(index, "number"),
                on_change=_changed,
                args=(len(rows),),
                label_visibility=label,
                width=220,
            )
            st.text_input(
                "Bound",
                key=_key(index, "bound"),
                on_change=_changed,
                args=(len(rows),),
                label_visibility=label,
                help="<=10% of the measured value, <=5ms or <=2pp of difference, =2..8 as the range of the replay",
                width=110,
            )
            st.selectbox(
                "Population",
                list(dict.fromkeys([row.population, *contract.POPULATIONS])),
                key=_key(index, "population"),
                on_change=_changed,
                args=(len(rows),),
                format_func=lambda name: name or "headline",
                label_visibility=label,
                width=170,
            )
            st.button("Remove", key=f"gate-{index}-remove", on_click=_removed, args=(index, rows), type="tertiary")
    if len(rows) < MOST_ROWS:
        st.button("Add a gate", key="gate-add", on_click=_added, args=(rows,))


def _key(index: int, part: str) -> str:
    return f"gate-{index}-{part}"


def _changed(count: int) -> None:
    state = st.session_state
    edited = [
        Row(*(str(state[_key(index, part)]) for part in ("number", "bound", "population"))) for index in range(count)
    ]
    state["gates"] = contract.text_of(edited)


def _removed(index: int, rows: list[Row]) -> None:
    st.session_state["gates"] = contract.text_of([row for at, row in enumerate(rows) if at != index])


def _added(rows: list[Row]) -> None:
    st.session_state["gates"] = contract.text_of([*rows, Row(contract.FIRST, contract.FIRST_BOUND)])
