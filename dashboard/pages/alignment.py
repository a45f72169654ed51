"""Alignment: find a gap rung by rung, from reproducing the prediction to the numbers of the whole."""

import streamlit as st

from dashboard import jobs, widgets
from dashboard.charts.draw import draw
from dashboard.charts.replays import joblist
from dashboard.charts.rungs import alignment
from dashboard.compare.align import Presets, align
from dashboard.compare.align.memory import deployment_named
from dashboard.compare.align.reproduce import problem
from dashboard.frame import escape
from dashboard.jobs import again as again_jobs
from dashboard.render.align import NOT_YET, says
from engine.deployment import model_names, part_names, preset_folders
from engine.deployment.engine_log import read_memory_log
from engine.deployment.kept_log import keep_memory_log
from engine.errors import GapscopeError

LOOK = {2: ("cohort", "Cohort"), 3: ("identity", "Identity"), 4: ("passes", "Passes"), 5: ("ladder", "Ladder")}
"""Where what a rung found can be looked at in parts."""

frame, store, roots = widgets.frame("alignment"), widgets.store(), widgets.roots()
if frame.measured.bundle.kind != "measured" or not frame.replay or frame.replay.bundle.kind != "replay":
    st.info(
        "An alignment holds a replay against a recording: choose a measured run and a replay of it in the bar above."
    )
    st.stop()
pair, replay = (frame.measured, frame.replay), frame.replay.run_id
widgets.need_requests(frame)
named, folders = deployment_named(store, replay), preset_folders(roots)
with st.container(horizontal=True, vertical_alignment="bottom"):
    tolerance = widgets.control("align_tol", width=150)
    if not named:
        part = widgets.control("align_part", options=["", *part_names(folders)], width=220)
        model = widgets.control("align_model", options=["", *model_names(folders)], width=260)
presets = None if named else Presets(part or "", model or "")
found = align(
    store,
    frame.measured.run_id,
    replay,
    again=again_jobs.result(roots[-1], replay),
    population=frame.population,
    estimator=frame.estimator,
    tolerance=tolerance / 100,
    presets=presets,
    acknowledged=frame.acknowledged,
)
note = "From the bottom: each rung keeps its own verdict, and one above a rung that fails is not to be read yet."
draw(frame, "rungs", "Rungs of the alignment", alignment.rungs(found), note=note, sides=pair)
st.markdown("  \n".join(escape(words) for words in found.claim))

with st.container(horizontal=True, vertical_alignment="bottom"):
    chosen = int(widgets.control("align_rung", default=str(found.current.number), flat=True))
    ahead = widgets.control("align_ahead")
rung = found.rungs[chosen - 1]
st.header(f"Rung {rung.number}: {rung.name}")
st.caption(escape(rung.question))

if rung.number == 1:
    why = problem(store, frame.replay.bundle)
    if st.button("Play the replay again", type="primary", key="again", disabled=bool(why)):
        jobs.submit(roots[-1], again_jobs.spec(replay, roots))
        st.rerun()
    joblist.show(roots[-1], again_jobs.DOES, replay=replay)
if rung.number == 3:
    if named:
        st.caption("The deployment is that of the replay's knobs.")
    log = st.file_uploader("The engine's start-up log: its figures of memory are kept, no line of it", key="_align_log")
    if log is not None and st.button("Keep its figures", key="keep-log"):
        try:
            told = read_memory_log(line.decode("utf-8", "replace") for line in log)
            keep_memory_log(told, frame.measured.run_id, roots[-1])
            st.rerun()
        except GapscopeError as error:
            st.error(escape(str(error)))

if not found.readable(rung) and not ahead:
    st.info(f"{NOT_YET.capitalize()}. {escape(says(found, rung))}", icon=":material/lock:")
    st.stop()
if not found.readable(rung):
    st.warning(f"{NOT_YET.capitalize()}. {escape(says(found, rung))}")
else:
    st.markdown(escape(says(found, rung)))
rows, figure = alignment.checks(frame, found, rung), alignment.offs(rung, frame.dark)
if figure is not None:
    note = "Grey: what is allowed. A circle holds, a cross does not; an open circle is beyond too few repeats."
    draw(frame, "offs", "How far each check is off, %", rows, figure, note=note, sides=pair)
draw(frame, "checks", "Checks of the rung", rows, sides=pair)
for words in rung.notes:
    st.caption(escape(words))
for need in rung.needed:
    st.caption(f"Needed: {escape(need)}")
if rung.number in LOOK:
    page, name = LOOK[rung.number]
    st.page_link(
        widgets.PAGES_FOLDER / f"{page}.py", label=f"{name}: the same in parts", icon=":material/arrow_forward:"
    )
