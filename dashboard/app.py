"""Entry point of the dashboard: one run of the script, from the navigation to the page below the pair bar."""

from __future__ import annotations

from functools import partial
from typing import Any

import pandas  # noqa: F401  pyarrow imports it at the first array it reads: better here than behind a first control
import streamlit as st

from dashboard import view, widgets
from dashboard.serving.gate import require_login
from dashboard.sharing.comment import Shown
from dashboard.shell import heading, mark, panels
from dashboard.shell.bar import pair_bar
from dashboard.shell.contents import contents
from dashboard.shell.sheet import STYLE
from engine.collector import libraries_frozen
from engine.errors import GapscopeError

ABOUT = "gapscope: which part of the measured LLM serving path does this replay misrepresent?"


def main() -> None:
    """One run of the script."""
    st.set_page_config(
        page_title="gapscope",
        page_icon=mark.icon(),
        layout="wide",
        initial_sidebar_state=210,
        menu_items={"about": ABOUT},
    )
    libraries_frozen()  # Streamlit collects after every run of this script
    st.html(STYLE)
    st.logo(mark.logo(), size="small")
    require_login()
    page = widgets.navigation()
    name = page.url_path or view.DEFAULT_PAGE
    try:
        with widgets.store().steady():  # the files of the store are looked at once per run of the script
            _page(page, name)
    except GapscopeError as error:
        widgets.say_no_way(error)


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
    copying = pair_bar(name)
    listed = st.container()
    if again:
        st.rerun()
    try:
        page.run()
    finally:
        widgets.remember_view(name)  # a page that stops early shows something, too
        contents(listed, shown.drawn.values())
        if copying:
            panels.comment(copying, shown)


def _contract() -> str:
    """The acceptance contract on screen."""
    return str(st.session_state.get("gates") or "")


if __name__ == "__main__":
    main()
