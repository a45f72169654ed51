"""What-if: change knobs of a run, replay it, and see the result beside the pair."""

from typing import Any

import pyarrow as pa
import streamlit as st

from dashboard import jobs, widgets
from dashboard.charts import joblist
from dashboard.charts.tables import column_config
from dashboard.charts.timing_regime import axis_columns, axis_row, telling
from dashboard.frame import escape
from dashboard.jobs import memory, models, what_if
from dashboard.view import KNOB_PREFIX
from engine.deployment import changed_presets, preset_folders
from engine.errors import GapscopeError
from engine.knobs import BY_NAME, GROUPS, KNOBS, Knob, resolve

COLUMNS = 4
OPEN = ("client", "scheduler", "capacity", "timing")
"""Groups that are open before anything is changed; that of the deployment, where passes are priced from one."""

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
    label = f"{knob.name}, now {said or 'none'}{unit}"  # without markup: assistive tools read it as it stands
    options = None
    if knob.name in named:  # a name that the store lacks stays, and the page says what is wrong with it
        key = KNOB_PREFIX + knob.name
        asked = st.session_state.get(key) or st.query_params.get(key, "")
        options = list(dict.fromkeys(["", value, asked, *named[knob.name]]))
    return widgets.control(KNOB_PREFIX + knob.name, options=options, default=value, label=label, help=words, flat=False)


def wanted(name: str) -> Any:
    """The value of a knob before its control is drawn: of the session, else of the link, else of the base run."""
    key = KNOB_PREFIX + name
    if key in st.session_state or key not in st.query_params:
        return st.session_state.get(key, now[name])
    try:
        return BY_NAME[name].parse(st.query_params[key])
    except GapscopeError:
        return now[name]  # the control does not take it either


def of_deployment() -> bool:
    """Whether passes are, or may be, priced from a named deployment."""
    return wanted("timing") in ("analytic", "anchor", "table") or wanted("on_refused") == "analytic"


in_pair = [one for one in (*(st.session_state.get("r") or ()), st.session_state.get("m")) if one in known]
left, right = st.columns([1, 1])
with left:
    base_id = widgets.control("base", options=known, default=(in_pair or known)[0], on_change=restart)
    if place := next((entry.place for entry in entries if entry.run_id == base_id), ""):
        st.caption(f"This run is {escape(place)}: its knobs are kept, what it took from the measurement is not.")
base = store.bundle(base_id)
named = models.choices(roots, base)
recorded = preset_folders(roots, base.lineage.get("timing"))
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

with st.container(border=True, key="run-bar"):
    run_row = st.container(horizontal=True, vertical_alignment="center")
    problems = st.container()
job_list = st.container()

values: dict[str, Any] = {}
for group, title in GROUPS.items():
    knobs = [knob for knob in KNOBS if knob.group == group]
    changed_here = any(wanted(one.name) != now[one.name] for one in knobs)
    shown = changed_here or group in OPEN or (group == "deployment" and of_deployment())
    with st.expander(title, expanded=shown, key=f"group-{group}"):
        for first in range(0, len(knobs), COLUMNS):
            columns = st.columns(COLUMNS, vertical_alignment="bottom")
            for column, knob in zip(columns, knobs[first : first + COLUMNS], strict=False):
                with column:
                    values[knob.name] = control(knob, now[knob.name])

changed = what_if.changes(values, now)
refused, resolved = "", None
try:
    resolved = resolve(changed, now)  # a contradiction is said here, before a process starts
    priced = bool(fit) or what_if.holds_model(base) or values["timing"] != "fpm"
    if priced and not stuck:
        refused = models.refusal(base, roots, fit, resolved)
except GapscopeError as error:
    refused, priced = str(error), False
with problems:
    if refused:
        st.error(escape(refused))
    for words in changed_presets(recorded, resolved or now):
        st.caption(escape(words))
    if resolved:
        room, too_much = memory.ledger_words(resolved, roots, base.lineage.get("timing"))
        if room:
            (st.warning if too_much else st.caption)(escape(room))
    if refused and resolved and (rows := models.axes(base, roots, resolved)):
        shown_columns = axis_columns("Anchor")
        st.dataframe(
            pa.Table.from_pylist([axis_row(row) for row in telling(rows)]),
            key="refused-axes",
            hide_index=True,
            placeholder="–",
            column_config=column_config(shown_columns),
            column_order=[one.name for one in shown_columns],
            alt="Regime of the anchor and of what it would stand for, axis by axis",
        )
with run_row:
    words = ", ".join(f"**{escape(k)}** {escape(str(now[k]))} → {escape(str(v))}" for k, v in changed.items())
    st.markdown(
        f"Changed: {words}" if changed else "Nothing is changed: the run is replayed as it was.", width="stretch"
    )
    st.button("Reset", on_click=restart, disabled=not changed)
    if st.button("Run the replay", type="primary", key="run-replay", disabled=bool(stuck or refused) or not priced):
        job = jobs.submit(roots[-1], what_if.spec(base, changed, fit, roots))
        widgets.follow(job.id)
        st.rerun()
with job_list:
    joblist.show(roots[-1], "replay")
