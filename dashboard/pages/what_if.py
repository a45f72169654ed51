"""What-if: change knobs of a run, replay it, and see the result beside the pair."""

import streamlit as st

from dashboard import jobs, widgets
from dashboard.charts.replays import joblist, knobs
from dashboard.charts.replays import what_if as charts
from dashboard.frame import escape
from dashboard.jobs import estimate, memory, models, what_if
from dashboard.sweeps.plan import said
from engine.deployment import changed_presets, preset_folders
from engine.errors import GapscopeError
from engine.knobs import resolve

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
    own = what_if.base_values(chosen)
    knobs.undo(own, own)
    st.session_state["fit"] = what_if.default_fit(store, chosen, entries)


base, fit = charts.start(known, restart)
named = models.choices(roots, base)
recorded = preset_folders(roots, base.lineage.get("timing"))
now = what_if.base_values(base)
stuck = what_if.problem(base, roots)
if stuck:
    st.warning(escape(stuck))

with st.container(border=True, key="run-bar"):
    run_row = st.container(horizontal=True, vertical_alignment="center")
    problems = st.container()
after = st.container()
values = knobs.groups(now, named)

changed = what_if.changes(values, now)
refused, resolved, expected = "", None, None
try:
    resolved = resolve(changed, now)  # a contradiction is said here, before a process starts
    priced = bool(fit) or what_if.holds_model(base) or values["timing"] != "fpm"
    if priced and not stuck:
        refused = models.refusal(base, roots, fit, resolved)
        expected = estimate.of_run(store, roots[-1], entries, base, resolved, now)
except GapscopeError as error:
    refused, priced = str(error), False
with problems:
    if refused:
        st.error(escape(refused))
    elif expected:
        st.caption(f"Run time: about {expected.words}.", help=f"Rests on {escape(expected.rests_on)}.")
    elif priced and not stuck:
        st.caption(f"Run time: no estimate, {escape(estimate.why_none(base, resolved or now, now))}.")
    for words in changed_presets(recorded, resolved or now):
        st.caption(escape(words))
    if resolved:
        room, too_much = memory.ledger_words(resolved, roots, base.lineage.get("timing"))
        if room:
            (st.warning if too_much else st.caption)(escape(room))
    if refused and resolved and (rows := models.axes(base, roots, resolved)):
        charts.axes(rows)
with run_row:
    knobs.summary(changed, now)
    st.button("Reset", on_click=knobs.undo, args=(now, now), disabled=not changed, help="Every knob as in the base run")
    if st.button("Run the replay", type="primary", key="run-replay", disabled=bool(stuck or refused) or not priced):
        spec = what_if.spec(base, changed, fit, roots)
        widgets.follow(jobs.submit(roots[-1], spec, estimate=expected.to_json() if expected else None).id)
        st.rerun()
with after:
    joblist.show(roots[-1], "replay")
    charts.onward(base.run_id, said(changed) if changed else "")
    charts.result(base, now, changed)
