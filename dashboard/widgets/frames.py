"""What a page is about: the runs of the pair bar that can be shown, as sides, and the scope of the bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import streamlit as st

from dashboard import pairs, sides
from dashboard.catalogue import KIND_WORDS, RunEntry
from dashboard.charts.style import ROLES, Role
from dashboard.frame import Frame, Side, escape, placed, role, roles
from dashboard.metrics import Estimator, Population, Window
from dashboard.view import PARAMS
from dashboard.widgets.address import permalink
from dashboard.widgets.controls import control, dark
from dashboard.widgets.navigation import entered
from dashboard.widgets.stored import entries, store
from engine.errors import GapscopeError


def frame(page: str) -> Frame:
    """What the charts of this page are about: replays that are absent or altered are named and left out.

    Stops the page, with a sentence, where there is nothing to show.
    """
    entered()
    found = entries()
    if not pairs.comparable(found):
        st.info(
            "There are no runs to compare in this store yet. Import a recording on the Runs page, or write one with "
            "`gapscope import` or `gapscope replay`."
        )
        st.stop()
    chosen = [st.session_state["m"], *(st.session_state.get("r") or ())]
    for own, run_id in zip(ROLES, chosen, strict=False):
        if problem := unusable(run_id, found):
            st.error(f":{own.word}[{own.glyph} {own.name}]: {escape(problem)}")
    if unusable(chosen[0], found):
        st.stop()
    if chosen[0] in chosen[1:]:
        st.warning(f"{escape(chosen[0])} stands on both sides, and a run against itself shows nothing: choose another.")
    return _frame(page, chosen[0], usable_replays(chosen, found))


def _frame(page: str, first: str, others: Sequence[tuple[Role, str]]) -> Frame:
    measured = Side(ROLES[0], store().bundle(first))
    measured, replays = placed(measured, [side(first, run_id, own) for own, run_id in others])
    population, estimator, window = scope()
    hide = st.session_state.get("hide") or ()
    return Frame(
        measured,
        replays,
        population,
        estimator,
        window,
        bool(st.session_state.get("ack", False)),
        dark(),
        partial(permalink, page),
        bool(st.session_state.get("pin", False)),
        frozenset(run_id for own, run_id in [(ROLES[0], first), *others] if own.name in hide),
    )


def scope() -> tuple[Population, Estimator, Window]:
    """Population, estimator and window of rates as the bar has them; the default of a control that is not there."""
    names = ("phase", "pop", "tol", "est", "win")
    state = {name: st.session_state.get(name, PARAMS[name].default) for name in names}
    population = Population(state["phase"], state["pop"], int(state["tol"]))
    return population, Estimator(state["est"]), Window(state["win"])


def candidate(shown: Frame, name: str) -> Side:
    """The candidate that a chart of one pair is about: by the control of ``name`` where there are several."""
    if len(shown.replays) == 1:
        return shown.replays[0]
    by_role = {ROLES[at].name: one for at, one in _places(shown)}
    if st.session_state.get(name) not in (None, *by_role):
        st.session_state[name] = next(iter(by_role))  # that candidate left the bar
    return by_role[control(name, options=list(by_role), default=next(iter(by_role)), width=150)]


def led(shown: Frame, name: str) -> Frame:
    """The frame with the chosen candidate in front: what compares one pair compares that one."""
    if len(shown.replays) < 2:
        return shown
    first = candidate(shown, name)
    return replace(shown, replays=(first, *(side for side in shown.replays if side is not first)))


def _places(shown: Frame) -> list[tuple[int, Side]]:
    """The replays with their places in the pair bar: absent ones leave theirs empty."""
    chosen = list(st.session_state.get("r") or ())
    return [(1 + chosen.index(one.run_id), one) for one in shown.replays]


def need_requests(shown: Frame) -> None:
    """Stop the page, with a sentence, where a run of it has none: a sweep, or a summary without rows."""
    for side in shown.sides:
        if "requests" not in store().tables(side.run_id):
            st.info(
                f"Run {escape(side.run_id)} has no requests, it is a {KIND_WORDS[side.bundle.kind]}: choose a "
                "recording or a replay. What its files say is on the Source page."
            )
            st.stop()


def unusable(run_id: str, found: Sequence[RunEntry]) -> str | None:
    """Why a run cannot be shown: absent, or altered, which may come to light only when its bytes are read."""
    if said := pairs.absence(run_id, found):
        return said
    try:
        store().bundle(run_id)
    except GapscopeError as error:
        return str(error)
    return None


def usable_replays(chosen: Sequence[str], found: Sequence[RunEntry]) -> list[tuple[Role, str]]:
    """The replays that can be shown, each in the role of its place in the pair bar."""
    return [(role(at), run_id) for at, run_id in enumerate(chosen[1:]) if not unusable(run_id, found)]


def pair_roles(chosen: Sequence[str]) -> tuple[Role, ...]:
    """The roles of the pair bar, as :func:`frame` gives them."""
    found = entries()
    if unusable(chosen[0], found):
        return ROLES
    kinds = [store().bundle(run_id).kind for _, run_id in usable_replays(chosen, found)]
    return roles(store().bundle(chosen[0]).kind, kinds)


def side(measured: str, run_id: str, own: Role) -> Side:
    """A run seen from the measured run."""
    return sides.side_of(store(), measured, run_id, own)


def inside(run_id: str) -> float | None:
    """Share of modelled time that the timing model answered from inside its measured domain."""
    return sides.inside(store(), run_id)
