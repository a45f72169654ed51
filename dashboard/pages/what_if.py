"""What-if: change knobs of a run, replay it, and see the result beside the pair."""

from typing import Any

import streamlit as st

from dashboard import jobs, widgets
from dashboard.charts import joblist
from dashboard.frame import escape
from dashboard.jobs import what_if
from dashboard.view import KNOB_PREFIX
from engine.knobs import GROUPS, KNOBS, Knob, resolve

COLUMNS = 4

widgets.entered()
store, roots = widgets.store(), widgets.roots()
entries = widgets.entries()
known = what_if.bases(entries)
if not known:
    st.info("There is no run to start from yet: import a recording on the Runs page first.")
    st.stop()


def restart() -> None:
    """Another base run brings its own values, and its own model or passes to fit one on."""
    chosen = store.bundle(st.session_state["base"])
    for knob, value in what_if.base_values(chosen).items():
        st.session_state[KNOB_PREFIX + knob] = value
    st.session_state["fit"] = what_if.default_fit(store, chosen, entries)


def control(knob: Knob, value: Any) -> Any:
    """The bound control of a knob; its default is the base run's value."""
    said = ("on" if value else "off") if knob.type is bool else f"{value:g}" if knob.type is float else str(value)
    words = f"{knob.help}. Expected: {knob.expectation()}."
    unit = f" {knob.unit}" if knob.unit and not knob.name.endswith(f"_{knob.unit}") and knob.unit != knob.name else ""
    label = f"{knob.name}, now {said}{unit}"  # without markup: assistive tools read it as it stands
    return widgets.control(KNOB_PREFIX + knob.name, default=value, label=label, help=words, flat=False)


in_pair = [one for one in (*(st.session_state.get("r") or ()), st.session_state.get("m")) if one in known]
left, right = st.columns([1, 1])
with left:
    base_id = widgets.control("base", options=known, default=(in_pair or known)[0], on_change=restart)
    if place := next((entry.place for entry in entries if entry.run_id == base_id), ""):
        st.caption(f"This run is {escape(place)}: its knobs are kept, what it took from the measurement is not.")
base = store.bundle(base_id)
now = what_if.base_values(base)
stuck = what_if.problem(base, roots)
if stuck:
    st.warning(escape(stuck))
with right:
    offered = what_if.fit_choices(entries)
    fit = widgets.control("fit", options=offered, default=what_if.default_fit(store, base, entries))
    if not fit:
        st.caption(
            "The timing model of the run to start from is used."
            if what_if.holds_model(base)
            else "This run holds no timing model: choose measured passes to fit one on, or set timing to fixed."
        )

run_bar = st.container(border=True, key="run-bar", horizontal=True, vertical_alignment="center")
job_list = st.container()

values: dict[str, Any] = {}
for group, title in GROUPS.items():
    knobs = [knob for knob in KNOBS if knob.group == group]
    changed_here = any(st.session_state.get(KNOB_PREFIX + one.name, now[one.name]) != now[one.name] for one in knobs)
    shown = changed_here or group in ("client", "scheduler", "capacity")
    with st.expander(title, expanded=shown, key=f"group-{group}"):
        for first in range(0, len(knobs), COLUMNS):
            columns = st.columns(COLUMNS, vertical_alignment="bottom")
            for column, knob in zip(columns, knobs[first : first + COLUMNS], strict=False):
                with column:
                    values[knob.name] = control(knob, now[knob.name])

changed = what_if.changes(values, now)
resolve(changed, now)  # a contradiction is said here, before a process starts
with run_bar:
    words = ", ".join(f"**{escape(k)}** {escape(str(now[k]))} → {escape(str(v))}" for k, v in changed.items())
    st.markdown(
        f"Changed: {words}" if changed else "Nothing is changed: the run is replayed as it was.", width="stretch"
    )
    st.button("Reset", on_click=restart, disabled=not changed)
    priced = bool(fit) or what_if.holds_model(base) or values["timing"] != "fpm"
    if st.button("Run the replay", type="primary", key="run-replay", disabled=bool(stuck) or not priced):
        job = jobs.submit(roots[-1], what_if.spec(base, changed, fit, roots))
        widgets.follow(job.id)
        st.rerun()
with job_list:
    joblist.show(roots[-1], "replay")
