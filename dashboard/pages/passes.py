"""Passes: what the engine did, pass by pass, and how well its durations are modelled at equal geometry."""

import streamlit as st

from dashboard import widgets
from dashboard.charts import phases
from dashboard.charts.draw import draw
from dashboard.charts.passes import pass_gap, pass_model, pass_time, passes
from dashboard.charts.requests import traces

frame, store = widgets.frame("passes"), widgets.store()


def choose() -> None:
    """Remember the class and the cell that were clicked."""
    clicked = st.session_state["plot-geometry"]["selection"]["points"]
    st.session_state["cell"] = ""
    if clicked:
        key = clicked[0]["customdata"]
        name, _, st.session_state["cell"] = str(key[0] if isinstance(key, list) else key).partition(":")
        st.session_state["cls"] = name


def forget() -> None:
    """A cell belongs to a class."""
    st.session_state["cell"] = ""


draw(frame, "classes", "Passes and their time, by class", *passes.classes(frame, store))
if frame.replays:
    side = widgets.candidate(frame, "pass_of")
    sides = (frame.measured, side)
    rows, figure, words = pass_gap.gap(frame, store, side)
    draw(frame, "gap", "What each class makes of the gap in pass time, s", rows, figure, note=words, sides=sides)
    rows, figure, words = passes.geometry(frame, store, side)
    draw(
        frame,
        "geometry",
        "Error of the mean pass at equal geometry, %",
        rows,
        figure,
        note=f"Blue: the passes of {side.called} are shorter; orange: longer. A dot's area is the share of "
        "measured time; it is open where the error is inside the noise of the repeats. "
        f"Click a cell for its passes.{words}",
        sides=sides,
        on_select=choose,
    )

with st.container(horizontal=True, vertical_alignment="bottom"):
    pass_class = widgets.control("cls", on_change=forget)
    widgets.control("cell", label="Cell (click one above)", width=180, placeholder="none")
    along = widgets.control("along")
    log = widgets.control("pass_y", label="Duration axis") == "log"
cell = passes.cell_of(pass_class, st.session_state.get("cell") or "")
if cell:
    inside = passes.in_cell(frame, store, pass_class, cell)
    note = "Choose a row for links to the requests that were in the pass."
    picked = draw(frame, "cell", "Passes in the cell", inside, note=note, height=260, on_select="rerun")
    with st.container(horizontal=True, gap="small"):
        for row in picked["selection"]["rows"] if picked else ():
            for turn in passes.turns_in(inside, row):
                widgets.request_link(turn)

draw(
    frame,
    "durations",
    f"Duration of {passes.WORDS[pass_class]} passes",
    *pass_model.durations(frame, store, pass_class, along, log),
    note="Marks: p50 of the measured passes, larger where there are more; dashes: p10, p90. "
    "Lines: what the timing of a replay says of the mean geometry of these passes; its errors are those of single "
    "passes.",
)
rows, figure, words = pass_model.drift(frame, store)
words = f"{words} {phases.said(frame)}"
draw(frame, "drift", "Error of the timing model on the measured passes, whole capture", rows, figure, note=words)

with st.container(horizontal=True, vertical_alignment="bottom"):
    begin = widgets.control("pass_from", step=5.0, width=160)
    length = widgets.control("pass_span", step=5.0, width=160)
    ranks = pass_time.ranks(frame, store)
    rank = widgets.control("pass_rank", options=["all", *ranks], default="all", width=160) if ranks else ""
rows, figure, words = pass_time.timeline(frame, store, begin, length, rank)
draw(frame, "timeline", "Batch composition over time", rows, figure, note=f"{words} {phases.said(frame)}")
traces.trace_buttons(frame.sides, begin, length)

if ranks:
    draw(frame, "ranks", "Work and time by rank", pass_time.balance(frame, store))
    rows, figure, words = pass_time.spread(frame, store)
    if words:
        draw(frame, "spread", "Ranks of one step, over time", rows, figure, note=words)
    else:
        st.caption("Ranks of one step: these workers take no steps together.")
else:
    st.caption("Rank balance: these runs have a single rank, so there is nothing to balance.")
