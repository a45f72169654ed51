"""Saved views: a form that keeps the view on screen, and the list of those that are kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import streamlit as st

from dashboard.frame import escape
from dashboard.saved import SavedView, delete, read, rename, save
from dashboard.saved.book import MOST_NAME, MOST_NOTE
from dashboard.saved.text import held_words, page_of, runs_of, when
from engine.errors import GapscopeError

IN_PANEL, ON_PAGE = 5, 50
"""Views that are listed, the newest first."""


def form(stores: Sequence[Path], link: str) -> None:
    """Keep this view under a name. What is missing is said, and nothing typed is lost."""
    with st.form("save-view", border=False, enter_to_submit=True):
        name = st.text_input("Save this view as", max_chars=MOST_NAME, placeholder="a name", key="_view_name")
        note = st.text_input("Note", max_chars=MOST_NOTE, placeholder="what it shows", key="_view_note")
        if not st.form_submit_button("Save view", icon=":material/bookmark_add:"):
            return
    try:
        made = save(stores, link, name, note)
    except GapscopeError as error:
        st.error(escape(str(error)))
    else:
        st.success(f"Saved as {escape(made.name)} in {escape(stores[-1].name)}.", icon=":material/check:")


def newest(stores: Sequence[Path], held: Collection[str], base: str) -> None:
    """The views that were saved last."""
    found = read(stores)
    for one in found.views[:IN_PANEL]:
        _row(one, stores, held, base, "panel")
    if len(found.views) > IN_PANEL:
        st.caption(f"The {IN_PANEL} newest of {len(found.views)}: the Runs page lists all of them.")


def listing(stores: Sequence[Path], held: Collection[str], base: str) -> None:
    """Every saved view, in a fold."""
    found = read(stores)
    fold = st.expander("Saved views", key="saved-views", on_change="rerun")  # a label with a count would close it
    if not fold.open:
        return
    with fold:
        if found.bad:
            st.warning(escape(found.bad_words))
        if not found.views:
            st.info("No view is saved yet: on any page open Link, give the view a name and save it.")
        for one in found.views[:ON_PAGE]:
            _row(one, stores, held, base, "list")
        if len(found.views) > ON_PAGE:
            st.caption(
                f"The {ON_PAGE} newest of {len(found.views):,}; cut here: `gapscope views list` shows all of them."
            )


def _row(one: SavedView, stores: Sequence[Path], held: Collection[str], base: str, place: str) -> None:
    key = f"view-{place}-{one.id}"
    with st.container(horizontal=True, gap="small", vertical_alignment="center", wrap=False, key=key):
        try:
            link = one.shown.link(base)
        except GapscopeError as error:
            st.markdown(f"{escape(one.name)}: a view that cannot be opened. {escape(str(error))}", width="stretch")
        else:
            st.link_button(
                escape(one.name),
                link,
                key=f"open-{place}-{one.id}",
                icon=":material/open_in_new:",
                help="Open the view",
            )
            words = [f"**{page_of(one)}**", escape(", ".join(runs_of(one))), f"{when(one)} UTC"]
            words += [escape(one.note)] if one.note else []
            words += [escape(held_words(one, held))]
            st.markdown(f":small[{' · '.join(words)}]", width="stretch")
        if st.button("Edit", key=f"edit-{place}-{one.id}", type="tertiary", help="Rename or delete"):
            _edit(one, stores)


@st.dialog("Saved view")
def _edit(one: SavedView, stores: Sequence[Path]) -> None:
    name = st.text_input("Name", one.name, max_chars=MOST_NAME)
    note = st.text_input("Note", one.note, max_chars=MOST_NOTE)
    with st.container(horizontal=True):
        renamed = st.button("Rename", type="primary")
        deleted = st.button("Delete", help="It is no longer listed; its rows stay in the file")
    try:
        if renamed:
            rename(stores, one.id, name, note)
        elif deleted:
            delete(stores, one.id)
    except GapscopeError as error:
        st.error(escape(str(error)))
        return
    if renamed or deleted:
        st.rerun()
