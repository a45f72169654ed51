"""What is on a long page: a line of links to its charts, above them."""

from __future__ import annotations

from collections.abc import Iterable

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from dashboard.frame import cut, escape
from dashboard.sharing.comment import Drawn

FEW = 3
"""Charts that a reader finds without a list."""
NAME_CHARS = 44


def contents(place: DeltaGenerator, drawn: Iterable[Drawn]) -> None:
    """Links to the charts of a page, in ``place``; none where there are few of them."""
    if len(links := entries(drawn)) > FEW:
        with place, st.container(key="contents"):
            st.markdown(f":small[On this page: {' · '.join(f'[{escape(name)}](#{to})' for to, name in links)}]")


def entries(drawn: Iterable[Drawn]) -> list[tuple[str, str]]:
    """Anchor and name of every chart; of charts of one name the first."""
    named: dict[str, str] = {}
    for one in drawn:
        named.setdefault(cut(_name(one.title), NAME_CHARS), one.anchor)
    return [(anchor, name) for name, anchor in named.items()]


def _name(title: str) -> str:
    """A title up to its first colon, and up to its first comma where that leaves enough to know it by."""
    name = title.partition(": ")[0]
    short = name.partition(", ")[0]
    return short if short.count(" ") > 1 else name
