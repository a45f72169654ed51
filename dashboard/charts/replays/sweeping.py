"""What the pages of sweeps share: the run to start from, the plan with its estimate, the job, and the measured run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from dashboard import jobs, widgets
from dashboard.charts.replays import joblist
from dashboard.charts.replays import what_if as charts
from dashboard.charts.style import ROLES
from dashboard.compare.noise import Noise
from dashboard.compare.numbers import Number
from dashboard.frame import Frame, Side, escape
from dashboard.jobs import estimate, sweep, what_if
from dashboard.jobs.models import model_of
from dashboard.jobs.playing import priced_by
from dashboard.jobs.standing import Standing
from dashboard.sweeps import numbers
from dashboard.sweeps.numbers import Scope
from dashboard.sweeps.plan import Point, key_of, parse_changes, record_of
from engine.bundle import Bundle
from engine.errors import GapscopeError
from engine.knobs import resolve


@dataclass(frozen=True)
class Start:
    """What a sweep starts from: the run with its knobs, passes to fit on, and what every point changes."""

    base: Bundle
    fit: list[str]
    now: dict[str, Any]
    fixed: dict[str, Any]


def start() -> Start:
    """The controls of the run to start from. Stops the page, with a sentence, where nothing can be played."""
    entries, store, roots = widgets.entries(), widgets.store(), widgets.roots()
    known = what_if.bases(entries)

    def restart() -> None:
        chosen = store.bundle(st.session_state["base"])
        st.session_state["fit"] = what_if.default_fit(store, chosen, entries)

    base, fit = charts.start(known, restart)
    if stuck := what_if.problem(base, roots):
        st.warning(escape(stuck))
        st.stop()
    now = what_if.base_values(base)
    text = widgets.control("swp_with", placeholder="e.g. lanes=6 think_scale=0.5")
    try:
        fixed = parse_changes(text or "")
        values = resolve({name: value for name, value in fixed.items() if value != now[name]}, now)
    except GapscopeError as error:
        st.error(escape(str(error)))
        st.stop()
    if values["timing"] == "fpm" and not fit and not what_if.holds_model(base):
        st.info("Nothing prices a pass yet: choose passes to fit a timing model on, or write timing=fixed above.")
        st.stop()
    return Start(base, fit, now, fixed)


def run(begun: Start, points: Sequence[Point], title: str, kind: str) -> dict[str, str]:
    """The plan in a line, the button that asks for the job, and the jobs around this run; the runs that points have.

    These are ids by the keys of records, of runs that were made as points and of replays that points would only repeat.
    """
    store, roots = widgets.store(), widgets.roots()
    drawn = joblist.complete(roots[-1], sweep.DOES, base=begun.base.run_id)
    entries = widgets.entries()
    made = numbers.runs_of(entries)
    keys = {key_of(record_of(begun.base.run_id, point.changes, begun.fit)): point for point in points if not point.why}
    standing = _standing(begun, {key: point for key, point in keys.items() if key not in made})
    known = made | standing
    missing = [point for key, point in keys.items() if key not in known]
    refused = sum(bool(point.why) for point in points)
    values = resolve(missing[0].changes, begun.now) if missing else begun.now
    expected = (
        estimate.of_run(store, roots[-1], entries, begun.base, values, begun.now, len(missing)) if missing else None
    )
    with st.container(border=True, key="sweep-bar", horizontal=True, vertical_alignment="center"):
        words = f"{len(keys)} points: {len(keys) - len(missing)} in the store"
        words += f" ({len(standing)} as a replay with the same knobs, trace and timing)" if standing else ""
        words += f", {len(missing)} to play"
        words += f", {refused} contradict themselves" if refused else ""
        if missing:
            words += f". Run time: {f'about {expected.words}' if expected else 'no estimate'}"
        rests = f"Rests on {expected.rests_on}." if expected else ""
        st.markdown(f"{escape(words)}.", help=escape(rests) or None, width="stretch")
        spec = sweep.spec(begun.base.run_id, points, begun.fit, roots, title)
        asked = sweep.latest(roots[-1], spec)
        idle = missing and (asked is None or asked.final)
        if st.button(f"Run the {kind}", type="primary", key="run-sweep", disabled=not idle):
            jobs.submit(roots[-1], spec, estimate=expected.to_json() if expected else None)
            st.rerun()
    joblist.show(roots[-1], sweep.DOES, drawn=drawn, base=begun.base.run_id)
    return known


def _standing(begun: Start, points: Mapping[str, Point]) -> dict[str, str]:
    """Replays of the store that points would only repeat, by the keys of the points."""
    store, roots = widgets.store(), widgets.roots()
    replays = [entry.run_id for entry in widgets.entries() if entry.kind == "replay" and entry.state == "ok"]
    asked = (begun.base.run_id, tuple(begun.fit))

    def model(values: Mapping[str, Any]) -> Mapping[str, Any] | None:
        def make() -> Mapping[str, Any] | None:
            return model_of(begun.base, roots, begun.fit, values)

        found: Mapping[str, Any] | None = store.remember(("model of a what-if", *asked, priced_by(values)), make)
        return found

    def sound(run: Bundle) -> bool:
        try:
            return bool(store.bundle(run.run_id))
        except GapscopeError:
            return False

    def find() -> dict[str, str]:
        manifests = [store.catalog.manifest(run_id) for run_id in replays]
        among = Standing(begun.base, roots, manifests, model, sound, begun.fit)
        told = {key: among.find(point.changes) for key, point in points.items()}
        return {key: run_id for key, run_id in told.items() if run_id}

    found: dict[str, str] = store.remember(("standing", *asked, tuple(points), tuple(replays)), find)
    return found


def scope(frame: Frame) -> Scope:
    """Population, estimator and window of the bar, with the measured run that points are held against."""
    return Scope(frame.measured.run_id, frame.population, frame.estimator, frame.window)


def beside(frame: Frame, begun: Start, name: str) -> tuple[Number | None, Noise | None, str]:
    """The number of the measured run with its noise; or why it does not stand beside the points."""
    store = widgets.store()
    own, other = (bundle.identity.value("trace", "digest") for bundle in (frame.measured.bundle, begun.base))
    if own != other:
        return None, None, "The measured run above played another workload than these points, so it is not drawn."
    if why := numbers.unlike(store, scope(frame), begun.base.run_id, name):
        return None, None, f"The number of the measured run is not one and the same quantity: {why}"
    number, noise = scope(frame).base(store, begun.base.run_id, name)
    return number, noise, "" if number.value is not None else f"Measured: {number.why}."


def value_beside(frame: Frame, begun: Start, name: str) -> float | None:
    """The value of the measured run where it may stand beside the points; else None."""
    number, _, _ = beside(frame, begun, name)
    return number.value if number else None


def sides(frame: Frame, begun: Start) -> tuple[Side, ...]:
    """The runs that the charts of a sweep are about: the measured one, and the one that was started from."""
    if begun.base.run_id == frame.measured.run_id:
        return (frame.measured,)
    return frame.measured, widgets.side(frame.measured.run_id, begun.base.run_id, ROLES[1])


def chosen(key: str) -> None:
    """Put the run of a clicked mark into the pair bar."""
    clicked = st.session_state[f"plot-{key}"]["selection"]["points"]
    run = clicked[0].get("customdata") if clicked else None
    run = run[0] if isinstance(run, list) else run
    if run:
        widgets.choose_candidate(str(run))
