"""Timing: how long passes take by the sources that could price them, beside the passes that were measured."""

from dataclasses import replace

import streamlit as st

from dashboard import widgets
from dashboard.charts.draw import draw
from dashboard.charts.passes.pass_model import names as names_of
from dashboard.charts.passes.pass_model import shared_timing
from dashboard.charts.style import ROLES
from dashboard.charts.timing import anchors, timing, timing_checks
from dashboard.frame import escape
from dashboard.timing_sources import doubtful, measured_passes, nearest_on_decodes, offered, other, own, preset_of
from dashboard.view import SOURCE_NAME
from engine.deployment import model_names, preset_folders

frame, store = widgets.frame("timing"), widgets.store()
replays = [side for side in frame.replays if side.bundle.kind == "replay"]

recorded = [
    entry.run_id for entry in widgets.entries() if entry.state == "ok" and entry.passes and entry.kind != "replay"
]
first = frame.measured.run_id
if not recorded:
    st.info("No run of this store has measured passes that a source could be held against.")
    st.stop()
with st.container(horizontal=True, vertical_alignment="bottom"):
    run_id = widgets.control(
        "tim_run",
        options=recorded,
        default=next((one.run_id for one in frame.sides if one.run_id in recorded), recorded[0]),
        width=330,
    )
    known = offered(store)
    lacking = [name for name in st.query_params.get_all("tim_with") if name and name not in known]
    options = [*known, *(name for name in lacking if SOURCE_NAME.fullmatch(name))]  # the page says what is wrong
    names = widgets.control(
        "tim_with", options=options, width=420, placeholder="analytic, anchors, tables", max_selections=3
    )
    log = widgets.control("tim_y") == "log"
run = frame.measured
if run_id != first:
    run = replace(widgets.side(first, run_id, ROLES[0]), said="measured passes")
model, tp = "", 1
if any(name.startswith("analytic:") for name in names):
    with st.container(horizontal=True, vertical_alignment="bottom"):
        presets = ["", *model_names(preset_folders(store.roots))]
        model = widgets.control("tim_model", options=presets, default=preset_of(store, run.bundle), width=330)
        tp = widgets.control("tim_tp", width=160)

passes = measured_passes(store, run_id)
assert passes is not None  # of those that are offered
sources = []
models = shared_timing(frame, store)
replays = [side for side in replays if side.run_id in models]  # the first of those with one timing stands for all
for side in replays:
    slug = side.run_id.rpartition("-")[0] if len(models[side.run_id]) == 1 else "the same model"
    found = replace(own(store, side.bundle, run_id), name=f"{names_of(models[side.run_id])}: {slug}")
    if found.why:
        st.info(escape(f"Not drawn, {found.name}: {found.why}"))
    sources.append((side.role, found))
for index, name in enumerate(names):
    found = other(store, run.bundle, name, model, tp)
    if found.why:
        st.error(escape(f"{found.name}: {found.why}"))
    sources.append((timing.role_of(index, found.name), found))
drawn = [(role, source) for role, source in sources if source.covered is not None]

phases = frame.population.pass_phases if run_id == first else set(passes.phases.tolist())
chosen = timing.in_phases(passes, phases)
shared, words = timing.shared_support(passes, chosen, drawn)
sides = (run, *replays) if replays else (run,)
n = int(chosen.sum())
if not drawn:
    words = "No source is chosen: add some above, or put a replay into the bar."
rows, figure = timing.decode_curves(passes, chosen, drawn, run.role, log, frame.dark)
told = timing.curve_answer(rows, run, n, passes.sql, "KV per request (tokens)")
draw(frame, "decode", "Decode passes over KV per request, by batch", told, figure, note=words, sides=sides)
rows, figure = timing.prompt_curves(passes, chosen, shared, drawn, run.role, log, frame.dark)
told = timing.curve_answer(rows, run, n, passes.sql, "New tokens")
draw(frame, "prompts", "Passes with prompts over new tokens", told, figure, note=words, sides=sides)
if drawn:
    told = timing.errors(passes, chosen, drawn, shared, run)
    draw(frame, "errors", "Error of each source on the passes that all of them cover", told, note=words, sides=sides)

best = nearest_on_decodes(passes, shared, [source for _, source in drawn])
if best is not None:
    role, source = drawn[best]
    doubt = doubtful(source, passes, chosen, run.bundle)
    told, figure, words = timing_checks.skew(store, run, phases, source, role, frame.dark, doubt)
    draw(frame, "skew", "Do uneven KV lengths cost time?", told, figure, note=words, sides=sides)

for side in replays:
    held, called = timing_checks.holdout(side, frame.dark), " and ".join(one.called for one in models[side.run_id])
    if held is None:
        st.caption(escape(timing_checks.no_holdout(side, called)))
        continue
    by_class, (by_cell, figure), words = held
    draw(
        frame,
        f"holdout-{side.role.name}",
        f"Hold-out error of the timing of {called}, by class",
        by_class,
        note=words,
        sides=(run, side),
    )
    draw(
        frame,
        f"holdout-cells-{side.role.name}",
        f"Hold-out error of the timing of {called}, by cell",
        by_cell,
        figure,
        note="Colour: error of the total time of a cell; numbers: passes held out in it.",
        sides=(run, side),
    )

told, ranked = anchors.kept(store, run)
draw(
    frame,
    "kept",
    "Anchors and tables of the store, and what of them applies to this run",
    told,
    sides=sides,
    height=300,
)
if ranked:
    by_name = {one.anchor.name: one for one in ranked}
    name = widgets.control("tim_anchor", options=list(by_name), default=ranked[0].anchor.name, width=330)
    draw(frame, "axes", f"Regime of anchor {name} and of the run", anchors.axes_of(by_name[name], run), sides=sides)
