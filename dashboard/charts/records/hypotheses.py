"""Hypotheses as cards: what is claimed, what would refute it, the evidence as links, and what may follow."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from dashboard.frame import escape
from dashboard.hypotheses import LAYERS, Event, Hypothesis, record
from dashboard.hypotheses.rules import MOST_CHARACTERS, refusal
from dashboard.hypotheses.text import event_words, layer_words
from dashboard.view import PAGES, View, from_link
from engine.errors import GapscopeError

STATUS_WORDS = {
    "open": ":material/help: open",
    "supported": ":material/check: supported",
    "retracted": ":material/undo: retracted",
}
ACTIONS = {"evidence": "Add evidence", "supported": "Support", "retracted": "Retract", "reopened": "Open again"}
SUBMITS = ACTIONS | {"opened": "Open it", "evidence": "Use this view as evidence"}
TEXT_LABELS = {
    "evidence": "What it shows",
    "supported": "How the evidence supports it",
    "retracted": "Reason",
    "reopened": "Reason",
}


def card(one: Hypothesis, held: Collection[str], base: str, stores: Sequence[Path], seen: View | None) -> None:
    """One hypothesis.

    Args:
        one: the hypothesis.
        held: ids of the runs of the store, to say which link will not find its run.
        base: scheme, host and port of this server, for the links.
        stores: the folders of the book.
        seen: the view that was looked at last, offered as evidence.
    """
    with st.container(border=True, key=f"hypothesis-{one.id}", gap="xsmall"):
        st.markdown(f"{STATUS_WORDS[one.status]} · **{escape(one.statement)}** · :small[{escape(one.id)}]")
        st.markdown(f"Prediction that could fail: {escape(one.prediction)}")
        facts = [f"Attribution: {escape(layer_words(one.layer))}"]
        facts += [f"Unexplained: {escape(one.residual)}"] if one.residual else []
        st.markdown(" · ".join(facts))
        if one.status == "retracted":
            st.markdown(f"Retracted because: {escape(one.reason)}")
        for at, event in enumerate(one.evidence):
            _evidence(f"{one.id}-{at}", event, held, base)
        if not one.evidence:
            st.caption("No evidence yet.")
        with st.container(horizontal=True, gap="small"):
            for kind in ACTIONS:
                _action(one, kind, stores, seen)
            with st.popover("Events", key=f"events-{one.id}", type="tertiary"):
                st.markdown("\n".join(f"- {escape(event_words(event))}" for event in one.events))


def _evidence(key: str, event: Event, held: Collection[str], base: str) -> None:
    """One click opens the saved view in a new tab, as it was."""
    try:
        shown = from_link(event.view)
    except GapscopeError as error:
        st.caption(f"A view that cannot be opened: {escape(str(error))}")
        return
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        st.link_button(
            PAGES[shown.page], shown.link(base), key=f"view-{key}", icon=":material/open_in_new:", help=runs_of(shown)
        )
        words = [escape(event.text)] if event.text else []
        absent = [run_id for run_id in (shown["m"], *shown["r"]) if run_id and run_id not in held]
        words += [f"not in this store: {escape(', '.join(absent))}"] if absent else []
        words += [f"could not be read: {escape('; '.join(shown.ignored))}"] if shown.ignored else []
        st.markdown(" · ".join(words) or f":small[{escape(runs_of(shown))}]")


def runs_of(shown: View) -> str:
    """The runs of a view in words."""
    replays = ", ".join(shown["r"])
    return f"{shown['m']} against {replays}" if replays else str(shown["m"])


def new(stores: Sequence[Path]) -> None:
    """The button of a new hypothesis and its form."""
    if st.button("New hypothesis", key="opened", icon=":material/add:", type="primary"):
        st.dialog("New hypothesis")(_form)("opened", None, stores, None)


def _action(one: Hypothesis, kind: str, stores: Sequence[Path], seen: View | None) -> None:
    """A button and its form; what the rules do not allow next is not offered, support says what it waits for."""
    waits = refusal(one, Event(one.id, kind, ""))
    if waits and (kind, one.status) != ("supported", "open"):
        return
    if st.button(ACTIONS[kind], key=f"{kind}-{one.id}", disabled=bool(waits), help=waits):
        st.dialog(ACTIONS[kind])(_form)(kind, one, stores, seen)


def _form(kind: str, one: Hypothesis | None, stores: Sequence[Path], seen: View | None) -> None:
    """Ask for what an event of this kind says, and write it; what is missing is said and nothing typed is lost."""
    said: dict[str, Any] = {}
    with st.form(f"form-{kind}", border=False):
        if one is None:
            said["statement"] = _text("Statement", "What you think is wrong")
            said["prediction"] = _text(
                "Prediction that could fail", "What will be seen, and would not be seen if this were wrong"
            )
        else:
            st.markdown(f"**{escape(one.statement)}**")
            said["text"] = _text(TEXT_LABELS[kind])
        if kind == "evidence":
            said["link"] = st.text_input("Link of the view", value=seen.link() if seen else "")
            if seen:
                st.caption(f"Filled in: {PAGES[seen.page]}, {escape(runs_of(seen))}, as you saw it last.")
        elif kind != "reopened":
            choices = ["", *LAYERS]
            layer = one.layer if one and one.layer in LAYERS else ""
            said["layer"] = st.selectbox("Attribution", choices, choices.index(layer), format_func=layer_words)
            said["residual"] = st.text_input("What stays unexplained", max_chars=MOST_CHARACTERS)
        if not st.form_submit_button(SUBMITS[kind], type="primary"):
            return
    try:
        record(stores, kind, one.id if one else "", **said)
    except GapscopeError as error:
        st.error(escape(str(error)))
    else:
        st.rerun()


def _text(label: str, placeholder: str = "") -> str:
    return st.text_area(label, max_chars=MOST_CHARACTERS, height=80, placeholder=placeholder)
