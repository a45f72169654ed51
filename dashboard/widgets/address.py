"""The view on screen and its address: the link that opened it, and the one that restores it."""

from __future__ import annotations

from urllib.parse import urlsplit

import streamlit as st

from dashboard import pairs, view
from dashboard.frame import escape
from dashboard.view import PARAMS, SHARED, View
from dashboard.widgets.navigation import PAGES_FOLDER, no_such_page
from dashboard.widgets.stored import entries
from engine.errors import GapscopeError

NOT_VIEW = ("job", "embed", "embed_options")
"""Parameters of an address that are no part of the view."""


_UNKNOWN = object()


def open_link(page: str) -> None:
    """Read the link that opened this session: its version, and values that the controls would not take as they stand.

    Those are written into the address as the controls spell them, which needs one more run of the script. What could
    not be used is said until the view is changed.

    Raises:
        GapscopeError: a version that this program does not know.
    """
    if "_opened" not in st.session_state:
        _read_link(page)
    if told := st.session_state.get("_unused"):
        sentences, first = told
        if first is not None and _changed(first, page):
            del st.session_state["_unused"]
            return
        for sentence in sentences:
            st.warning(escape(sentence))


def _read_link(page: str) -> None:
    query = {name: st.query_params.get_all(name) for name in st.query_params}
    opened = view.from_query(page, query)
    st.session_state["_opened"] = opened
    sentences = [no_such_page()]
    if unused := [pairs.shorten(one, 160) for one in opened.ignored if one.split(":")[0] not in NOT_VIEW]:
        sentences.append(f"Parts of this link could not be used: {'; '.join(unused)}.")
    if said := [one for one in sentences if one]:
        st.session_state["_unused"] = (said, None)
    if "v" in st.query_params:
        del st.query_params["v"]  # the address bar goes on without a version: it leaves out what is the default now
    respelled = {
        name: value for name, value in opened.values.items() if PARAMS[name].texts(value) != query.get(name)
    }  # another spelling, or an older version of the link
    for name, value in respelled.items():
        st.session_state[name] = value
        st.query_params[name] = PARAMS[name].texts(value)
    if respelled:
        st.rerun()  # controls read the address as it was when a run of the script began


def _changed(first: View, page: str) -> bool:
    """Whether the view on screen is no longer the one that the link opened."""
    now = current(page).values
    return page != first.page or any(now.get(name) != value for name, value in first.values.items() if name in now)


def say_no_way(error: GapscopeError) -> None:
    """Say why a link cannot be opened, with a way on."""
    st.error(escape(str(error)))
    if "_opened" not in st.session_state:
        st.page_link(
            PAGES_FOLDER / f"{view.DEFAULT_PAGE}.py",
            label="Open the dashboard with its defaults",
            icon=":material/home:",
        )


def say_absent(page: str) -> None:
    """Name the runs of the link that opened this page which the store lacks, where no control of the page does."""
    opened: View | None = st.session_state.get("_opened")
    if opened is not None and opened.page != page:
        st.session_state["_opened"] = opened = None  # it was said where the link led to
    for problem in pairs.absent_elsewhere(opened, entries()) if opened else ():
        st.error(escape(problem))


def current(page: str) -> View:
    """The view on screen: what the controls of this page hold.

    A knob that is as its run to start from has it is left out: the view names that run by its content.
    """
    as_base = st.session_state.get("_as_base", {})
    values = {
        param.name: st.session_state[param.name]
        for param in view.params_of(page)
        if param.name in st.session_state and st.session_state[param.name] is not None
    }
    return View(page, {name: value for name, value in values.items() if value != as_base.get(name, _UNKNOWN)})


def remember_view(page: str) -> None:
    """Keep the view on screen for the ledger, which offers it as evidence after the page changed."""
    if told := st.session_state.get("_unused"):
        sentences, first = told
        seeded = first.values if first else {}
        st.session_state["_unused"] = (sentences, View(page, {**current(page).values, **seeded}))
    if page != "ledger" and st.session_state.get("m"):
        st.session_state["_seen"] = current(page)


def seen() -> View | None:
    """The view that was looked at before the ledger, else the verdict on the pair above; None without runs."""
    found: View | None = st.session_state.get("_seen")
    if found is None and st.session_state.get("m"):
        return View(
            view.DEFAULT_PAGE,
            {name: value for name, value in current("runs").values.items() if PARAMS[name].owner == SHARED},
        )
    return found


def permalink(page: str) -> str:
    """The link that restores the view on screen."""
    return current(page).link(base_url())


def base_url() -> str:
    """Scheme, host and port of this server as the browser names it; empty where nobody asks from a browser."""
    parts = urlsplit(st.context.url or "")
    return f"{parts.scheme}://{parts.netloc}" if parts.netloc else ""
