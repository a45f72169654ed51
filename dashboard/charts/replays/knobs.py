"""The knobs of a what-if: groups with units, what is changed and its undoing, and the search for one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import streamlit as st

from dashboard import widgets
from dashboard.frame import escape
from dashboard.sweeps.plan import shown
from dashboard.view import KNOB_PREFIX
from engine.errors import GapscopeError
from engine.knobs import BY_NAME, GROUPS, KNOBS, Knob

COLUMNS = 4
OPEN = ("client", "scheduler", "capacity", "timing")
"""Groups that are open before anything is changed; that of the deployment, where passes are priced from one."""


def wanted(name: str, now: Mapping[str, Any]) -> Any:
    """The value of a knob before its control is drawn: of the session, else of the link, else of the base run."""
    key = KNOB_PREFIX + name
    if key in st.session_state or key not in st.query_params:
        value = st.session_state.get(key, now[name])
        return now[name] if value is None else value  # an emptied box asks for nothing
    try:
        return BY_NAME[name].parse(st.query_params[key])
    except GapscopeError:
        return now[name]  # the control does not take it either


def undo(names: Iterable[str], now: Mapping[str, Any]) -> None:
    """Give these knobs the values of the base run again."""
    for name in names:
        st.session_state[KNOB_PREFIX + name] = now[name]


def holds(knob: Knob, words: Sequence[str]) -> bool:
    """Whether every word stands in the name or the text of a knob."""
    text = f"{knob.name} {knob.name.replace('_', ' ')} {knob.help} {knob.unit} {GROUPS[knob.group]}".lower()
    return all(word in text for word in words)


def groups(now: Mapping[str, Any], named: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Draw the search and the groups; the values of all knobs.

    A group with a changed knob is open. With something to search for, knobs that do not hold it are left out, changed
    ones excepted.

    Args:
        now: the values of the base run.
        named: what knobs that name something may name.
    """
    find = widgets.control(
        "knob_find", width=320, placeholder="name or word, as kv or prefill", icon=":material/search:"
    )
    words = str(find or "").lower().split()
    values = dict(now)
    found = 0
    for group, title in GROUPS.items():
        knobs = [knob for knob in KNOBS if knob.group == group]
        changed = [knob.name for knob in knobs if wanted(knob.name, now) != now[knob.name]]
        listed = [knob for knob in knobs if holds(knob, words) or knob.name in changed]
        if not listed:
            continue
        found += len(listed)
        is_open = bool(words or changed) or group in OPEN or (group == "deployment" and _of_deployment(now))
        label = f"{title} ({len(changed)} changed)" if changed else title
        with st.expander(label, expanded=is_open, key=f"group-{group}"):
            for first in range(0, len(listed), COLUMNS):
                columns = st.columns(COLUMNS, vertical_alignment="bottom")
                for column, knob in zip(columns, listed[first : first + COLUMNS], strict=False):
                    with column:
                        values[knob.name] = _control(knob, now[knob.name], named)
            if changed:
                st.button(
                    f"Reset {group}", key=f"reset-{group}", on_click=undo, args=(changed, now), help="Only this group"
                )
    if not found:
        st.caption("No knob holds these words.")
    return values


def _of_deployment(now: Mapping[str, Any]) -> bool:
    """Whether passes are, or may be, priced from a named deployment."""
    return wanted("timing", now) in ("analytic", "anchor", "table") or wanted("on_refused", now) == "analytic"


def _control(knob: Knob, value: Any, named: Mapping[str, Sequence[str]]) -> Any:
    """The bound control of a knob; its default is the base run's value, and its label says when it is another."""
    said = ("on" if value else "off") if knob.type is bool else shown(value)
    unit = f" {knob.unit}" if knob.unit and not knob.name.endswith(f"_{knob.unit}") and knob.unit != knob.name else ""
    is_changed = wanted(knob.name, {knob.name: value}) != value
    # without markup: assistive tools read it as it stands
    label = f"{knob.name}, {'changed from' if is_changed else 'now'} {said or 'none'}{unit}"
    options = None
    if knob.name in named:  # a name that the store lacks stays, and the page says what is wrong with it
        key = KNOB_PREFIX + knob.name
        asked = st.session_state.get(key) or st.query_params.get(key, "")
        options = list(dict.fromkeys(["", value, asked, *named[knob.name]]))
    words = f"{knob.help}. Expected: {knob.expectation()}."
    return widgets.control(KNOB_PREFIX + knob.name, options=options, default=value, label=label, help=words, flat=False)


def summary(changed: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """What is changed, each with its undoing, and all of it at once."""
    if not changed:
        st.markdown("Nothing is changed: the run is replayed as it was.", width="stretch")
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="xsmall", width="stretch", key="changed"):
        st.markdown("Changed:", width="content")
        for name, value in changed.items():
            st.button(
                f"{escape(name)} {escape(str(now[name]) or 'none')} → {escape(str(value))}",
                key=f"undo-{name}",
                icon=":material/undo:",
                on_click=undo,
                args=((name,), now),
                help=f"Undo: {escape(name)} is {escape(str(now[name]) or 'none')} again",
            )
