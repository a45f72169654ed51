"""The store of this server and its runs, as the pages see them."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from dashboard.catalogue import RunEntry
from dashboard.store import Store
from engine.stores import default_stores as default_roots


def roots() -> list[Path]:
    """The folders that hold runs; new ones go into the last."""
    return default_roots()


@st.cache_resource(show_spinner=False)
def _store(where: tuple[str, ...]) -> Store:
    return Store(where)


def store() -> Store:
    """The store of this server, shared by all its sessions."""
    return _store(tuple(str(root) for root in roots()))


def entries() -> list[RunEntry]:
    """The runs of the store as :func:`look` found them."""
    return list(st.session_state["_entries"])


def held() -> set[str]:
    """Ids of the runs of the store that can be shown."""
    return {entry.run_id for entry in entries() if entry.state == "ok"}


def look() -> None:
    """Look at the store, once per run of the script: each look asks for the state of every file."""
    st.session_state["_entries"] = tuple(store().catalogue())
