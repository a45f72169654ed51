"""Ladder: which layer holds the gap? Replays that take one layer at a time from the measurement, compared in pairs."""

import streamlit as st

from dashboard import jobs, widgets
from dashboard.charts.draw import draw
from dashboard.charts.replays import joblist
from dashboard.charts.rungs import ladder, parity
from dashboard.charts.rungs.ladder_steps import waterfall
from dashboard.charts.style import ROLES, noise_note
from dashboard.compare.climb import TOP
from dashboard.compare.ladder import base_of, climb
from dashboard.compare.numbers import Key
from dashboard.frame import escape
from dashboard.jobs import ladder as ladder_jobs
from dashboard.queries.parity import checks
from dashboard.render.ladder import doubts, name_of, sentences
from engine.ladder.rungs import PARITY_RUNG

frame, store, roots = widgets.frame("ladder"), widgets.store(), widgets.roots()
entries, measured = widgets.entries(), frame.measured.run_id
if frame.measured.bundle.kind != "measured" or not frame.replay or frame.replay.bundle.kind != "replay":
    st.info("A ladder leads from a replay to a recording: choose a measured run and a replay of it in the bar above.")
    st.stop()
base = base_of(entries, frame.replay.run_id)
prediction = frame.replay
if base != prediction.run_id:
    place = next(entry.place for entry in entries if entry.run_id == prediction.run_id)
    st.caption(f"The first replay is {escape(place)}; shown is the ladder of its base, {escape(base)}.")
    if problem := widgets.unusable(base, entries):
        st.error(escape(problem))
        st.stop()
    prediction = widgets.side(measured, base, ROLES[1])
pair = (frame.measured, prediction)
found = climb(store, measured, base, frame.population, frame.estimator)
job = ladder_jobs.latest(roots[-1], measured, base)

rungs = ladder.rungs(store, found, ladder_jobs.reasons(job))
draw(frame, "rungs", "Rungs from prediction to measurement", rungs, sides=pair)
for words in doubts(found):
    st.warning(escape(words))
with st.container(horizontal=True, vertical_alignment="center"):
    idle = found.missing and (job is None or job.final)
    if st.button("Build the ladder", type="primary", key="build", disabled=not idle):
        jobs.submit(roots[-1], ladder_jobs.spec(measured, base, roots))
        st.rerun()
    for number, run_id in found.runs.items():
        if number not in (0, TOP):
            label, said = f"Add rung {number}", f"Put {run_id} into the pair bar as a candidate"
            st.button(label, key=f"add-{number}", on_click=widgets.choose_candidate, args=(run_id,), help=said)
joblist.show(roots[-1], ladder_jobs.DOES, measured=measured, base=base)
if len(found.runs) == 2:
    st.info("No rung is in the store yet, so nothing tells the layers of the gap apart: build the ladder first.")
    st.stop()


def choose_number() -> None:
    """Remember the number whose row was clicked."""
    if clicked := st.session_state["plot-heat"]["selection"]["points"]:
        key = clicked[0]["customdata"]
        st.session_state["ladder_number"] = str(key[0] if isinstance(key, list) else key)


def choose_pass() -> None:
    """Remember the pass whose row was clicked."""
    rows = st.session_state["table-divergences"]["selection"]["rows"]
    st.session_state["ladder_pass"] = int(differing.rows["pass_index"][rows[0]].as_py()) if rows else -1


if prediction.regime and not frame.acknowledged:
    st.info("These runs are not like for like: the steps are withheld until that is acknowledged above.")
else:
    key = Key.parse(widgets.control("ladder_number", flat=False, width=260))
    st.markdown("  \n".join(escape(sentence) for sentence in sentences(found.gaps[key])))
    title = f"{name_of(key)} from the prediction to the measurement"
    note = f"{noise_note()} Hatched, ~: a step inside the noise; dotted: one beyond its repeats alone."
    draw(frame, "steps", title, *waterfall(store, found, key, frame.dark), note=note, sides=pair)
    title = "Steps of every number, as a share of its measured value"
    note = "From the prediction to the measurement, so signs are opposite to a replay's gap. Click a row for its steps."
    draw(frame, "heat", title, *ladder.heat(found, frame.dark), note=note, sides=pair, on_select=choose_number)

st.header("Scheduler parity")
teacher = found.runs.get(PARITY_RUNG)
told = checks(store, teacher) if teacher else {}
if not teacher or not told:
    st.info(escape(parity.absent(store, teacher, ladder_jobs.reasons(job))))
    st.stop()
forced = (frame.measured, widgets.side(measured, teacher, ROLES[1]))
draw(frame, "parity", "Passes whose batch equals the recorded one", parity.summary(told), sides=forced)
explained = [name for name in told if "causes" in told[name]]  # their differences are in the record, pass by pass
if not explained:
    st.stop()
with st.container(horizontal=True, vertical_alignment="bottom"):
    check = widgets.control("ladder_check", options=explained, default=explained[0], width=320)
    chosen = widgets.control("ladder_pass", width=200)
differing = parity.divergences(store, teacher, check)
title = f"Passes whose batches differ, {parity.WORDS.get(check, check)}"
draw(frame, "divergences", title, differing, sides=forced, height=260, on_select=choose_pass)
row = next((row for row in differing.rows.to_pylist() if row["pass_index"] == chosen), None)
if row:
    st.markdown(f"**Pass {chosen}**: {escape(parity.explained(row))}")
    both, queues = parity.batches(store, teacher, check, chosen), parity.queues(store, teacher, check, chosen)
    draw(frame, "batches", f"Both batches of pass {chosen}", both, sides=forced)
    draw(frame, "queues", f"Both waiting queues after pass {chosen}", queues, sides=forced)
