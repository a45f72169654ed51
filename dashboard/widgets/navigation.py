"""The pages of the navigation, and what stays when the page changes.

The shared controls are drawn by the entry point, so they keep their values then.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import streamlit as st

from dashboard import view
from dashboard.view import PARAMS, SHARED

PAGES_FOLDER = Path(__file__).parents[1] / "pages"


def navigation() -> Any:
    """Declare the pages; the one that is asked for. Without icons: those of pages are fetched from a CDN.

    The default page lives at the root and its own name leads to it as well. The sidebar lists the one of the two that
    the address names, so that the page one is on is marked. All are listed: behind a login something stands below
    them, and Streamlit folds most of a list that does not stand alone.
    """
    named = urlsplit(st.context.url or "").path.rpartition("/")[2] == view.DEFAULT_PAGE
    listed, other = (
        _page(view.DEFAULT_PAGE, default, visibility="visible" if default is not named else "hidden")
        for default in (not named, named)
    )
    pages: dict[str, list[Any]] = {
        section: [listed if name == view.DEFAULT_PAGE else _page(name, False) for name in names]
        for section, names in view.SECTIONS.items()
    }
    pages["Runs"].append(other)
    return st.navigation(pages, expanded=True)


def no_such_page() -> str:
    """A sentence where the address names a page that is not there; empty otherwise. Streamlit shows the default one."""
    path = urlsplit(st.context.url or "").path.removeprefix(
        f"/{(st.get_option('server.baseUrlPath') or '').strip('/')}"
    )
    asked = path.strip("/")
    if asked in ("", "start", *view.PAGES):
        return ""
    return (
        f"There is no page {asked[:60]!r}: this is {view.PAGES[view.DEFAULT_PAGE]}. The pages are listed on the left."
    )


def _page(name: str, default: bool, **options: Any) -> Any:
    path = PAGES_FOLDER / f"{name}.py"
    where = "start" if default else name
    return st.Page(path, title=view.PAGES[name], url_path=where, default=default, **options)


def entered() -> None:
    """Go through the entry point first.

    A folder called pages beside the entry point makes Streamlit run a page without it, once in the life of a server,
    until a navigation was declared.
    """
    if "_page" not in st.session_state:
        navigation()
        st.rerun()


def keep_shared(page: str) -> None:
    """Give every shared value, and those that both pages use, to the address bar again when the page changed."""
    before = st.session_state.get("_page")
    if before not in (None, page):
        for param in PARAMS.values():
            users = (param.owner, *param.also)
            both = param.owner == SHARED or (before in users and page in users)
            if both and param.name in st.session_state:
                st.session_state[param.name] = st.session_state[param.name]
    st.session_state["_page"] = page
